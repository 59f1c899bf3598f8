"""The commands about time: sweep and compare. No logic here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qsa_bench import defaults
from qsa_bench.cli_options import (
    Asked,
    Format,
    GoldenFile,
    Jobs,
    LibraryFile,
    MapFile,
    Quiet,
    Results,
    RunsIn,
    Stages,
    Verbose,
    complete_run,
)


def _list_option(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", metavar="LIST", help=text, show_default=False)  # type: ignore[no-any-return]


def sweep(
    stage: Stages = None,
    threads: Annotated[
        str | None, _list_option("threads", "Threads a block, or auto: 128,256,auto.")
    ] = None,
    context: Annotated[str | None, _list_option("context", "Tokens: 2k,2052,64k,1M.")] = None,
    rows: Annotated[str | None, _list_option("rows", "Rows of a launch: 1,8,64.")] = None,
    input: Annotated[
        str | None, _list_option("input", "Kinds of input: relu4,quant,equal.")
    ] = None,
    cache: Annotated[str | None, _list_option("cache", "warm,cold.")] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=LIST",
            help="Values of another axis of the stage; repeatable.",
            show_default=False,
        ),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(
            "--entry",
            metavar="LIST",
            help="C entries to time; with --library the one in it.",
            show_default=False,
        ),
    ] = None,
    timer: Annotated[
        str, typer.Option("--timer", metavar="LIST", help="cupti,graph,event; in every row.")
    ] = "cupti,graph",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="MODULE:FUNCTION",
            help="Time this beside the kernels; repeatable.",
            show_default=False,
        ),
    ] = None,
    builtin_peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="Time torch and cub, too.")
    ] = True,
    library: LibraryFile = None,
    map: MapFile = None,
    golden: GoldenFile = None,
    half_width: Annotated[
        str, typer.Option("--half-width", metavar="SHARE", help="Of the median's interval.")
    ] = "1%",
    least: Annotated[int, typer.Option("--least", metavar="N", help="Samples at least.")] = 50,
    most: Annotated[int, typer.Option("--most", metavar="N", help="Samples at most.")] = 400,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", help="For a point, timer and cache.")
    ] = 3.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the order.")] = 1,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with this run (or latest); what it has is skipped.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(
            "--stop-after",
            metavar="MINUTES",
            help="Begin no point after so long.",
            show_default=False,
        ),
    ] = None,
    from_nsys: Annotated[
        Path | None,
        typer.Option(
            "--from-nsys",
            metavar="FILE",
            help="Read an Nsight Systems SQLite export instead.",
            show_default=False,
        ),
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate",
            metavar="RUN",
            help="Builds that this gate run passed whole are not gated again.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Time gated kernels on the GPU, beside peers and limits."""
    from qsa_bench import requests

    lists = {"threads": threads, "context": context, "rows": rows, "input": input, "cache": cache}
    named = library is not None or map is not None
    request = requests.SweepRequest(
        stages=tuple(stage or ()),
        axes=requests.axes({**lists, "entry": None if named else entry}, axis or ()),
        timers=requests.words(timer),
        peers=tuple(peer or ()),
        builtin_peers=builtin_peers,
        foreign=requests.foreign(library, entry if named else None, map),
        golden=golden,
        rule=requests.rule(requests.share(half_width), least, most, limit),
        seed=seed,
        resume=resume,
        stop_after_s=None if stop_after is None else stop_after * 60,
        nsys=from_nsys,
        gate=gate,
        jobs=requests.default_jobs() if jobs is None else jobs,
        results=output,
    )
    return Asked("sweep", request, format, quiet, verbose)


def compare(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="A run folder.", autocompletion=complete_run)
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="A run folder.", autocompletion=complete_run)
    ],
    max_slowdown: Annotated[
        str, typer.Option("--max-slowdown", metavar="SHARE", help="Of a median that is no failure.")
    ] = "5%",
    max_growth: Annotated[
        str,
        typer.Option("--max-growth", metavar="SHARE", help="Of registers, spills, shared memory."),
    ] = "0%",
    results: RunsIn = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Compare two sweeps, two campaigns, or two builds' resources."""
    from qsa_bench import requests

    request = requests.CompareRequest(
        old=old,
        new=new,
        max_slowdown=requests.share(max_slowdown),
        max_growth=requests.share(max_growth),
        results=results,
    )
    return Asked("compare", request, format, quiet)


def add_commands(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (sweep, compare):
        app.command()(command)
