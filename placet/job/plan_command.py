"""`placet plan`: how a recipe's job would best be divided over a cluster.

The recipe makes its job here, on one rank; nothing is trained. Of the job the planner
takes the model, the loss, the optimizer's kind and the first global batch.
"""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Console

from placet.cost.objective import Unit
from placet.errors import PlacetError, PlanError
from placet.job.job import Job
from placet.job.plan_job import first_batch
from placet.job.recipes import Recipe, find_recipe, read_settings
from placet.job.setup import home
from placet.job.split import moved
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.explain import subject_of
from placet.planner.plan import Plan
from placet.planner.plan_text import STOPPED
from placet.planner.planning import PlannedFor, search, step_for
from placet.planner.wanted import Wanted, parse_bytes, wanted_of
from placet.program.capture import Precision

BAD_INPUT = 2


@dataclass(frozen=True)
class Question:
    """What the command line asks.

    Args:
        target: a recipe's name or file.
        assignments: the `--set` texts.
        cluster: a file, or the name of a cluster that placet brings.
        num_ranks: of this machine, where no cluster is given.
        memory: what each rank may hold.
        mesh: the only one to be tried, such as "data=2, model=4".
        objective: "seconds" or "bytes".
        out: the plan's file.
        explained: a module, operator, tensor or parameter whose alternatives are shown.
        gap: at which the search may end.
    """

    target: str
    assignments: tuple[str, ...] = ()
    cluster: str | None = None
    num_ranks: int | None = None
    memory: str | None = None
    mesh: str | None = None
    objective: str = "seconds"
    out: Path | None = None
    explained: str | None = None
    time_limit_seconds: float = 60.0
    gap: float | None = None


@dataclass(frozen=True)
class _Asked:
    """A question whose words have a meaning."""

    recipe: Recipe
    settings: dict[str, Any]
    cluster: Cluster
    mesh: Mesh | None


class _Refused(Exception):
    """What was asked cannot be."""


def run(question: Question) -> int:
    """Plan, print and save; the exit code for the shell.

    Errors of the recipe's own code are raised as they are.
    """
    try:
        _answer(question)
    except (_Refused, PlanError) as error:
        print(f"placet: {error}", file=sys.stderr, flush=True)
        return BAD_INPUT
    except PlacetError as error:
        print(f"placet: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _answer(question: Question) -> None:
    """All that can be wrong is looked at before the search, which may take minutes."""
    with _refusing():
        asked = _asked(question)
    made = asked.recipe.function(**asked.settings)
    with _refusing():
        job = _job_to_plan(made, asked.recipe)
        wanted = _wanted(question, asked, job)
    assert job.data is not None
    batch = moved(first_batch(job.data, job.settings.seed), home())
    with Console(stderr=True).status("capturing one step") as status:
        step = step_for(job.model, batch, job.loss, wanted)
        if question.explained is not None:
            with _refusing():
                subject_of(step.graph, question.explained)
        found = search(step, wanted, status.update)
    _show(found, step, question)


@contextmanager
def _refusing() -> Iterator[None]:
    """A caller's mistake ends the command."""
    try:
        yield
    except OSError as error:
        raise _Refused(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise _Refused(str(error)) from error


def _asked(question: Question) -> _Asked:
    """What can be checked without the recipe's job.

    Raises:
        ValueError: says which option, what was given, and what could be.
    """
    if question.objective not in get_args(Unit):
        known = " or ".join(get_args(Unit))
        raise ValueError(f"--objective {question.objective}: choose {known}")
    if question.memory is not None:
        parse_bytes(question.memory)
    if question.out is not None:
        check_writable(question.out)
    mesh = None if question.mesh is None else Mesh(question.mesh)
    recipe = find_recipe(question.target)
    settings = read_settings(recipe, question.assignments)
    cluster = cluster_of(question.cluster, question.num_ranks, mesh)
    return _Asked(recipe, settings, cluster, mesh)


def _wanted(question: Question, asked: _Asked, job: Job) -> Wanted:
    return wanted_of(
        cluster=asked.cluster,
        memory=question.memory,
        objective=cast(Unit, question.objective),
        mesh=asked.mesh,
        optimizer=job.optimizer,
        precision=cast(Precision, job.settings.precision),
        time_limit_seconds=question.time_limit_seconds,
        gap=question.gap,
    )


def _job_to_plan(made: object, recipe: Recipe) -> Job:
    if not isinstance(made, Job) or made.data is None or made.loss is None:
        raise ValueError(
            f"recipe {recipe.name} gives no Job with a loss and data to plan for"
        )
    return made


def _show(found: Plan, step: PlannedFor, question: Question) -> None:
    if question.out is not None:
        with _refusing():
            found.save(question.out)
    print(found, flush=True)
    if not found.is_complete:
        text = f"the search was stopped {STOPPED} (--time-limit-seconds)"
        Console(stderr=True, soft_wrap=True).print(text, style="yellow")
    if question.explained is not None:
        print(f"\n{found.explain(step.graph, question.explained)}", flush=True)
    if question.out is not None:
        print(f"\nplan: {question.out}", flush=True)


def check_writable(out: Path) -> None:
    """Refuse a file that the plan could not be written to in the end.

    Raises:
        ValueError: it is a folder, or its folder is not there or cannot be written to.
    """
    try:
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if out.exists():
            with out.open("a"):
                return
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"--out {out}: {error.strerror}; name a file in a folder that is there"
        ) from None


def cluster_of(name: str | None, num_ranks: int | None, mesh: Mesh | None) -> Cluster:
    """The cluster that the command line names.

    Raises:
        ValueError: no such cluster, or of another size than `-n` or the mesh.
    """
    if num_ranks is not None and num_ranks < 1:
        raise ValueError(f"-n {num_ranks}: a plan needs at least 1 rank")
    if name is None:
        wanted = mesh.num_ranks if num_ranks is None and mesh else num_ranks
        cluster = Cluster.here(wanted)
    else:
        try:
            cluster = Cluster.load(name)
        except OSError as error:
            raise ValueError(f"--cluster {name}: {error.strerror}") from error
        if num_ranks not in (None, cluster.num_ranks):
            raise ValueError(
                f"-n {num_ranks}, but the cluster {name} has {cluster.num_ranks} "
                "ranks; leave one of them out"
            )
    if mesh is not None and mesh.num_ranks != cluster.num_ranks:
        raise ValueError(
            f"--mesh '{_axes_text(mesh)}' has {mesh.num_ranks} ranks, there are "
            f"{cluster.num_ranks}; the sizes of its axes must multiply to that"
        )
    return cluster


def _axes_text(mesh: Mesh) -> str:
    """A mesh as the command line writes it."""
    pairs = zip(mesh.axes, mesh.sizes, strict=True)
    return ", ".join(f"{axis}={size}" for axis, size in pairs)


def question(
    target: str,
    assignments: Sequence[str],
    **asked: object,
) -> int:
    """`run`, from the command line's own values."""
    return run(Question(target, tuple(assignments), **asked))  # type: ignore[arg-type]
