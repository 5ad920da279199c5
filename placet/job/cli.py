"""placet's command line: what can be asked, and where it is done.

Each command is done by a module of its own, loaded when it is called: `placet --help`
answers at once, without importing torch.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from placet.errors import PlacetError
from placet.job.forkserver import start_forkserver
from placet.job.interrupt import EXIT_CODE
from placet.job.recipes import known_recipes
from placet.settings import worker

BAD_INPUT = 2
"""Exit code of a command that could not be understood; a failed one exits with 1."""

DONE_BY = {
    "train": "placet.job.train",
    "plan": "placet.job.plan_command",
    "report": "placet.job.report",
    "lab": "placet.job.lab_command",
    "calibrate": "placet.job.calibrate",
    "calibrate --compute": "placet.job.calibrate_compute",
    "doctor": "placet.job.doctor",
}

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="The name of a recipe, or path/to/file.py:function for your own.",
        show_default=False,
    ),
]

SettingTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the recipe; may be repeated. A wrong name lists "
        "those that there are.",
        show_default=False,
    ),
]

SearchSeconds = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="The search ends after so long, with the best plan so far.",
    ),
]

SearchGap = Annotated[
    float | None,
    typer.Option(
        metavar="PART",
        help="The search ends when no plan can be cheaper by more: 0.01 is one "
        "percent, 0 the best plan. (default: 0 for small models, 0.005 for others)",
        show_default=False,
    ),
]

app = typer.Typer(
    name="placet",
    help="Train a plain PyTorch model on the machines you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The `placet` command."""
    try:
        app()
    except PlacetError as error:
        _print_error(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)


def bad_input(error: Exception) -> typer.Exit:
    """Say what was wrong with a command; raise what it returns."""
    _print_error(str(error))
    return typer.Exit(BAD_INPUT)


@app.command(epilog=f"Recipes: {', '.join(known_recipes())}")
def train(
    recipe: RecipeName,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            help="Local workers. Under torchrun its own number holds. (default: 1)",
            show_default=False,
        ),
    ] = None,
    settings: SettingTexts = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|latest",
            help="Go on from the newest checkpoint of a run folder, or of this "
            "recipe's newest run in ./runs.",
            show_default=False,
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for events, checkpoints and the report. "
            "(default: runs/RECIPE-DATE-TIME)",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The links between the workers, as `placet calibrate` writes them; "
            "they decide which algorithm each move takes. (default: guessed)",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE|auto",
            help="Train by a plan that `placet plan` has written, on as many workers "
            "as it is for; or plan now.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a recipe on local workers and report on it.

    \b
    placet train char_gpt -n 2
    placet train char_gpt -n 4 --set lr=3e-4 --set steps=500
    placet train my_jobs.py:small_gpt
    torchrun --nproc-per-node 2 -m placet train char_gpt

    Ctrl-C once: the workers finish their step, save, and end; twice: they end at once.
    """
    launched = worker() is not None
    if not launched and ranks is not None and ranks > 1:
        start_forkserver(ranks)  # its import of torch runs beside our own
    code = _done_by("train", "train")(
        recipe, ranks, settings or (), resume, run_dir, cluster, plan
    )
    raise typer.Exit(code)


@app.command()
def plan(
    recipe: RecipeName,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="The hosts and links to plan for, of any size: a file as `placet "
            "calibrate` writes it, or lab, gpus16, nodes128x8. (default: this machine)",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            help="Ranks on this machine. (default: one a core or GPU)",
            show_default=False,
        ),
    ] = None,
    settings: SettingTexts = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What each rank may hold, such as 8GiB. (default: no limit)",
            show_default=False,
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="The only mesh to try, such as 'data=2, model=4'. (default: all)",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What the plan has least of: seconds or bytes.")
    ] = "seconds",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the plan here, as JSON.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Show the alternatives for a parameter, module, operator or tensor, "
            "and what each would cost.",
            show_default=False,
        ),
    ] = None,
    time_limit_seconds: SearchSeconds = 60.0,
    gap: SearchGap = None,
) -> None:
    """Find how a recipe is best divided over a cluster; nothing is trained.

    \b
    placet plan char_gpt -n 4 --objective bytes
    placet plan char_gpt --cluster nodes128x8 --memory 16GiB --out plan.json
    placet train char_gpt --plan plan.json
    """
    code = _done_by("plan", "question")(
        recipe,
        settings or (),
        cluster=cluster,
        num_ranks=ranks,
        memory=memory,
        mesh=mesh,
        objective=objective,
        out=out,
        explained=explain,
        time_limit_seconds=time_limit_seconds,
        gap=gap,
    )
    raise typer.Exit(code)


@app.command()
def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run's folder.", show_default=False),
    ],
) -> None:
    """Write a run's report: one HTML page, RUN/report.html."""
    try:
        page = _done_by("report", "render")(run)
    except ValueError as error:
        raise bad_input(error) from None
    typer.echo(page)


@app.command()
def lab(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND", help="Run once per rank.", show_default=False
        ),
    ],
    hosts: Annotated[int, typer.Option(help="Emulated hosts.")] = 2,
    ranks_per_host: Annotated[int, typer.Option(help="Ranks that share a host.")] = 1,
    rate: Annotated[
        str, typer.Option(help="Each host's link, both ways, as tc writes it.")
    ] = "100mbit",
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="GxH", help="G groups of H hosts, each behind an uplink: 2x2."
        ),
    ] = None,
    group_rate: Annotated[
        str | None, typer.Option(help="Each group's uplink; needs --groups.")
    ] = None,
    timeout_seconds: Annotated[
        float, typer.Option(help="The command is ended after so long.")
    ] = 3600.0,
) -> None:
    """Run a command on a cluster with slow links, emulated on this machine.

    \b
    placet lab --hosts 4 --rate 100mbit -- placet train char_gpt
    placet lab --hosts 4 --groups 2x2 --group-rate 50mbit -- python bench.py

    Each host is a network namespace; it needs Linux, root and iproute2.
    """
    try:
        code = _done_by("lab", "run_command")(
            command,
            hosts=hosts,
            ranks_per_host=ranks_per_host,
            rate=rate,
            groups=groups,
            group_rate=group_rate,
            timeout_seconds=timeout_seconds,
        )
    except ValueError as error:
        raise bad_input(error) from None
    raise typer.Exit(code)


@app.command()
def calibrate(
    links: Annotated[
        bool, typer.Option("--links", help="Measure what joins the ranks.")
    ] = False,
    compute: Annotated[
        bool, typer.Option("--compute", help="Measure what each rank computes.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--ranks",
            help="Local ranks. Under torchrun its own number holds. (default: one a "
            "core, at least 2)",
            show_default=False,
        ),
    ] = None,
    cluster_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the cluster here, as TOML.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure this machine, or those that torchrun has started ranks on.

    \b
    placet calibrate --compute
    placet calibrate --links -n 4 --cluster-out cluster.toml
    torchrun --nproc-per-node 2 -m placet calibrate --links --cluster-out cluster.toml

    Links: latency and bytes/s between ranks of a host, between hosts and between
    groups of hosts, with all ranks sending at once. Compute: operations and bytes per
    second of a rank, with all ranks running, kept for `placet plan`.
    """
    try:
        if links == compute:
            what = "one of them at a time" if links else "nothing to measure"
            raise ValueError(f"{what}; add --links or --compute")
        if cluster_out is not None and not links:
            raise ValueError("--cluster-out is for --links, which measures a cluster")
        if worker() is None and ranks is not None and ranks > 1:
            start_forkserver(ranks)  # as for `train`
        if compute:
            code = _done_by("calibrate --compute", "calibrate_compute")(ranks)
        else:
            code = _done_by("calibrate", "calibrate")(ranks, cluster_out)
    except ValueError as error:
        raise bad_input(error) from None
    raise typer.Exit(code)


@app.command()
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run's folder.", show_default=False),
    ] = None,
) -> None:
    """Explain why a run failed or hangs; without RUN, what this machine lacks."""
    if run is None:
        raise typer.Exit(_done_by("doctor", "examine")())
    try:
        code = _done_by("doctor", "explain_run")(run)
    except ValueError as error:
        raise bad_input(error) from None
    raise typer.Exit(code)


def _done_by(command: str, function: str) -> Callable[..., Any]:
    done: Callable[..., Any] = getattr(
        importlib.import_module(DONE_BY[command]), function
    )
    return done


def _print_error(text: str) -> None:
    print(f"placet: {text}", file=sys.stderr, flush=True)
