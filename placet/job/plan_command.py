"""`placet plan`: how a recipe's job would best be divided over a cluster.

The recipe makes its job here, on one rank; nothing is trained. Of the job the planner
takes the model, the loss, the optimizer's kind and the first global batch.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from rich.console import Console

from placet.cost.objective import Unit
from placet.errors import PlacetError, PlanError
from placet.job.job import Job
from placet.job.plan_job import first_batch
from placet.job.recipes import find_recipe, read_settings
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.planning import graph_for, plan
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
        explained: an operator, tensor or parameter whose alternatives are shown.
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


def run(question: Question) -> int:
    """Plan, print and save; the exit code for the shell."""
    try:
        cluster = cluster_of(question.cluster, question.num_ranks)
        if question.objective not in get_args(Unit):
            known = " or ".join(get_args(Unit))
            raise ValueError(f"--objective {question.objective}: choose {known}")
        mesh = None if question.mesh is None else Mesh(question.mesh)
        recipe = find_recipe(question.target)
        settings = read_settings(recipe, question.assignments)
        job = recipe.function(**settings)
        if not isinstance(job, Job) or job.data is None or job.loss is None:
            raise ValueError(
                f"recipe {recipe.name} gives no Job with a loss and data to plan for"
            )
        _answer(question, job, cluster, mesh)
    except (PlanError, ValueError, TypeError, OSError) as error:
        print(f"placet: {error}", file=sys.stderr, flush=True)
        return BAD_INPUT
    except PlacetError as error:
        print(f"placet: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def cluster_of(name: str | None, num_ranks: int | None) -> Cluster:
    """The cluster that the command line names.

    Raises:
        ValueError: no such cluster, or of another size than `-n`.
    """
    if num_ranks is not None and num_ranks < 1:
        raise ValueError(f"-n {num_ranks}: a plan needs at least 1 rank")
    if name is None:
        return Cluster.here(num_ranks)
    try:
        cluster = Cluster.load(name)
    except OSError as error:
        raise ValueError(f"--cluster {name}: {error.strerror}") from error
    if num_ranks not in (None, cluster.num_ranks):
        raise ValueError(
            f"-n {num_ranks}, but the cluster {name} has {cluster.num_ranks} ranks; "
            "leave one of them out"
        )
    return cluster


def _answer(question: Question, job: Job, cluster: Cluster, mesh: Mesh | None) -> None:
    assert job.data is not None
    batch = first_batch(job.data, job.settings.seed)
    precision = cast(Precision, job.settings.precision)
    with Console(stderr=True).status("planning") as status:
        found = plan(
            job.model,
            batch,
            job.loss,
            cluster=cluster,
            memory=question.memory,
            objective=cast(Unit, question.objective),
            mesh=mesh,
            optimizer=job.optimizer,
            precision=precision,
            time_limit_seconds=question.time_limit_seconds,
            watch=status.update,
        )
    print(found, flush=True)
    if question.out is not None:
        found.save(question.out)
        print(f"\nplan: {question.out}", flush=True)
    if question.explained is not None:
        graph = graph_for(
            job.model,
            batch,
            job.loss,
            num_ranks=cluster.num_ranks,
            precision=precision,
        )
        print(f"\n{found.explain(graph, question.explained)}", flush=True)


def question(
    target: str,
    assignments: Sequence[str],
    **asked: object,
) -> int:
    """`run`, from the command line's own values."""
    return run(Question(target, tuple(assignments), **asked))  # type: ignore[arg-type]
