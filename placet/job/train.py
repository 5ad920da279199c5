"""`placet train`: a recipe on local workers, or on those that torchrun has started.

one worker          in this process
-n 2 and more       launch(run_recipe, n)         -> placet.job.launch
under torchrun      in this process, one of many
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placet.errors import PlanError, RankFailed
from placet.job import interrupt, session
from placet.job.checkpoint_folder import newest
from placet.job.checkpoint_format import MANIFEST_FILE
from placet.job.console import Terminal
from placet.job.job import Job
from placet.job.launch import launch
from placet.job.plan_job import AUTO
from placet.job.process import die_with_parent
from placet.job.recipes import Recipe, absolute_target, find_recipe, read_settings
from placet.job.report import render
from placet.job.worker import SAYS_ALL, account_of
from placet.placement.cluster import Cluster
from placet.planner.plan import Plan
from placet.settings import RUN_DIR, Worker, run_dir, set_run_dir, worker

RUNS = Path("runs")
BAD_INPUT = 2


@dataclass(frozen=True)
class Request:
    """What each worker needs to make the job: small and picklable.

    Args:
        target: a recipe's name or file, as `find_recipe` reads it.
        assignments: the `--set` texts.
        checkpoint: what to go on from, or None.
        cluster: the links between the workers, where they were measured.
        plan: the file of the job's plan, or "auto".
    """

    target: str
    assignments: tuple[str, ...]
    checkpoint: str | None
    cluster: Cluster | None = None
    plan: str | None = None


def train(
    target: str,
    num_ranks: int | None,
    assignments: Sequence[str],
    resume: str | None,
    folder: Path | None,
    cluster_file: Path | None = None,
    plan: str | None = None,
) -> int:
    """Train, print and report; the exit code for the shell.

    Args:
        target: a recipe's name or file.
        num_ranks: local workers; None: 1, or as many as torchrun started.
        assignments: the `--set` texts.
        resume: a run's folder, or "latest".
        folder: the new run's folder; None: one in ./runs, named after recipe and time.
        cluster_file: the links between the workers; guessed if left out.
        plan: the file of the job's plan, or "auto".
    """
    try:
        place = worker()
        _check_num_ranks(num_ranks, place)
        if plan is not None and plan != AUTO:
            num_ranks = _ranks_of_plan(plan, num_ranks, place)
            plan = str(Path(plan).resolve())
        recipe = find_recipe(target)
        read_settings(recipe, assignments)
        checkpoint = None if resume is None else str(_checkpoint_of(resume, recipe))
        cluster = None if cluster_file is None else _cluster(cluster_file)
        target = absolute_target(target)
        request = Request(target, tuple(assignments), checkpoint, cluster, plan)
        folder = _make_folder(folder, recipe, place)
    except (ValueError, PlanError) as error:
        print(f"placet: {error}", file=sys.stderr, flush=True)
        return BAD_INPUT
    if place is not None:
        die_with_parent()
    if place is not None or num_ranks is None or num_ranks == 1:
        return _train_here(request, recipe, folder)
    assert folder is not None  # without torchrun there always is one
    try:
        launch(
            run_recipe,
            num_ranks,
            args=(request,),
            environment={RUN_DIR: str(folder)},
            logs=folder,
        )
    except RankFailed as error:
        print(f"placet: {error}\nrun: {folder}", file=sys.stderr, flush=True)
        return 1
    _print_report(folder)
    return 0


def run_recipe(request: Request) -> None:
    """Make the recipe's job on this rank and train it to its end."""
    recipe = find_recipe(request.target)
    session.use_cluster(request.cluster)
    session.use_plan(request.plan)
    job = make_job(recipe, request)
    with Terminal(is_shown=job.rank == 0) as terminal:
        job.callbacks.insert(0, terminal)
        job.fit()
    session.close()


def make_job(recipe: Recipe, request: Request) -> Job:
    """The recipe's job and, if asked, an older state in it.

    Raises:
        TypeError: the recipe returned something else than a Job.
    """
    job = recipe.function(**read_settings(recipe, request.assignments))
    if not isinstance(job, Job):
        raise TypeError(
            f"recipe {recipe.name} returned {job!r}, of type {type(job).__name__}; a "
            "recipe returns a placet.Job, not yet trained"
        )
    if request.checkpoint is not None:
        job.load(request.checkpoint)
    return job


def _train_here(request: Request, recipe: Recipe, folder: Path | None) -> int:
    """Train in this process: alone, or as one of torchrun's workers."""
    place = worker()
    reports = place is None or place.rank == 0
    interrupt.install(announce=reports)
    try:
        folder = folder or _agreed_folder(recipe)
        set_run_dir(folder)
        run_recipe(request)
    except Exception as error:
        who = "placet: " if reports else f"placet: rank {place.rank if place else 0}: "
        is_told = isinstance(error, SAYS_ALL)
        print(f"{who if is_told else ''}{account_of(error)}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # no clean-up that could wait for peers which wait for this rank
    if reports:
        _print_report(folder)
    return 0


def _cluster(file: Path) -> Cluster:
    try:
        return Cluster.load(file)
    except OSError as error:
        raise ValueError(f"--cluster {file}: {error.strerror}") from error


def _print_report(folder: Path) -> None:
    print(f"report: {render(folder)}", flush=True)


def _check_num_ranks(num_ranks: int | None, place: Worker | None) -> None:
    if num_ranks is not None and num_ranks < 1:
        raise ValueError(f"-n {num_ranks}: a job needs at least 1 worker")
    if place is not None and num_ranks not in (None, place.num_ranks):
        raise ValueError(
            f"-n {num_ranks} under torchrun, which has started {place.num_ranks} "
            "workers; leave -n out, or start `placet train` without torchrun"
        )


def _ranks_of_plan(plan: str, num_ranks: int | None, place: Worker | None) -> int:
    """How many workers a plan's file is for.

    Raises:
        ValueError: there is no such file, or it is for another number.
        PlanError: it holds no plan.
    """
    if not Path(plan).is_file():
        raise ValueError(
            f"--plan {plan}: there is no such file; give one that `placet plan ... "
            f"--out FILE` has written, or {AUTO}"
        )
    mesh = Plan.load(plan).mesh
    given = num_ranks if place is None else place.num_ranks
    if given not in (None, mesh.num_ranks):
        raise ValueError(
            f"--plan {plan} is for {mesh!r}, {mesh.num_ranks} workers, not {given}: "
            f"start it with -n {mesh.num_ranks}, or plan for -n {given}"
        )
    return mesh.num_ranks


def _make_folder(
    given: Path | None, recipe: Recipe, place: Worker | None
) -> Path | None:
    """The new run's folder; None where torchrun's workers are to agree on one.

    Raises:
        ValueError: it holds a run already, or cannot be written.
    """
    folder = given or run_dir()
    if folder is None and place is not None:
        return None
    folder = folder or _new_folder(recipe)
    if place is None and any(folder.glob("events-rank*.jsonl")):
        raise ValueError(
            f"{folder} holds a run already; name another --run-dir, or go on from it: "
            f"--resume {folder}"
        )
    return _made(folder)


def _agreed_folder(recipe: Recipe) -> Path:
    """The folder that rank 0 chose, made where this worker runs."""
    chosen = str(_new_folder(recipe)).encode()
    first = session.current_wire().exchange(chosen, key="run folder")[0]
    return _made(Path(first.decode()))


def _new_folder(recipe: Recipe) -> Path:
    return RUNS / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"the run's folder {folder} cannot be written ({error.strerror}); name "
            "another one with --run-dir"
        ) from None
    return folder.resolve() if folder.is_absolute() else folder


def _checkpoint_of(resume: str, recipe: Recipe) -> Path:
    """The checkpoint that `--resume` names."""
    if resume == "latest":
        runs = sorted(RUNS.glob(f"{recipe.name}-*"), reverse=True)
        found = (newest(run / "checkpoints") for run in runs)
        checkpoint = next((path for path in found if path is not None), None)
        if checkpoint is None:
            raise ValueError(
                f"--resume latest: none of the {len(runs)} runs {RUNS}/{recipe.name}-* "
                "holds a complete checkpoint"
            )
        return checkpoint.resolve()
    run = Path(resume)
    if not run.is_dir():
        raise ValueError(f"--resume {resume}: there is no such folder")
    if (run / MANIFEST_FILE).is_file():
        return run.resolve()
    checkpoint = newest(run / "checkpoints") or newest(run)
    if checkpoint is None:
        raise ValueError(
            f"--resume {resume}: neither {run}/checkpoints nor {run} itself holds a "
            "complete checkpoint (a folder step-<number>)"
        )
    return checkpoint.resolve()
