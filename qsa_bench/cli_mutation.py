"""The command line of campaigns: mutate, merge, strength, argue, report. Flags to a request, as in cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qsa_bench import defaults
from qsa_bench.cli_options import (
    Asked,
    ExecutorName,
    Format,
    GoldenFile,
    Jobs,
    Quiet,
    ReportFormatName,
    Results,
    RunsIn,
    Sanitizers,
    Seeds,
    Stages,
    Target,
    Verbose,
    complete_run,
)


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(mutate)
    app.command()(merge)
    app.command()(strength)
    app.command()(argue)
    app.command()(report)


def mutate(
    stage: Stages = None,
    target: Target = "host",
    golden: GoldenFile = None,
    id: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="GLOB",
            help="Only mutants whose id matches (see `list mutants`); repeatable.",
            show_default=False,
        ),
    ] = None,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Also mutants derived from the syntax tree (extra: auto)."),
    ] = False,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            "--operator",
            metavar="GLOB",
            help="Only automatic mutants of these operators; repeatable.",
            show_default=False,
        ),
    ] = None,
    in_diff: Annotated[
        Path | None,
        typer.Option(
            "--in-diff",
            metavar="FILE",
            help="Only mutants of lines that this diff touches.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", help="So many of them.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Which sample.")] = 0,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="K/N",
            help="The K-th of N equal parts, K from 1; `merge` joins them.",
            show_default=False,
        ),
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(
            "--max-time",
            metavar="S",
            help="Begin no mutant after so many seconds.",
            show_default=False,
        ),
    ] = None,
    first_kill: Annotated[
        bool,
        typer.Option(
            "--first-kill", help="Stop an automatic mutant at the first check that sees it."
        ),
    ] = False,
    separate_builds: Annotated[
        bool,
        typer.Option(
            "--separate-builds",
            help="Build each mutant by itself, though many could share a build.",
        ),
    ] = False,
    executor: Annotated[
        ExecutorName, typer.Option("--executor", help="Here, or over a Ray cluster (extra: ray).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="A",
            help="The cluster's, as ray.init takes it. [default: one on this machine]",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List them and run none.")] = False,
    show: Annotated[
        str | None,
        typer.Option(
            "--show", metavar="ID", help="Show one as a diff and run none.", show_default=False
        ),
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show all as diffs and run none.")] = False,
    seeds: Seeds = defaults.MUTATE_SEEDS,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Run every mutant anew, whatever earlier runs found."),
    ] = False,
    sanitizer: Sanitizers = None,
    jobs: Jobs = None,
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Prove the gate: it must see every fault put in."""
    from qsa_bench import campaign_requests, requests

    request = campaign_requests.MutateRequest(
        stages=tuple(stage or ()),
        target=target,
        golden=golden,
        id_globs=(show,) if show else tuple(id or ()),
        seeds=seeds,
        jobs=requests.default_jobs() if jobs is None else jobs,
        results=output,
        fresh=fresh,
        sanitizers=requests.sanitizers(sanitizer, target),
        auto=auto or (show is not None and "/auto/" in show),
        operators=tuple(operator or ()),
        in_diff=in_diff,
        sample=sample,
        sample_seed=seed,
        shard=campaign_requests.shard_of(shard) if shard else None,
        stop_after_s=max_time,
        executor=executor,
        address=address,
        first_kill=first_kill,
        separate_builds=separate_builds,
    )
    if list_ or show or diff:
        asked = campaign_requests.MutantsRequest(request, diffs=diff or show is not None)
        return Asked("mutants", asked, format, quiet, verbose)
    return Asked("mutate", request, format, quiet, verbose)


def merge(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="All shards of a campaign: folders, their names, or zips."
        ),
    ],
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Join the shards of a campaign into one run."""
    from qsa_bench import campaign_requests

    request = campaign_requests.MergeRequest(runs=tuple(runs), results=output)
    return Asked("merge", request, format, quiet, verbose)


def strength(
    stage: Stages = None,
    target: Target = "host",
    golden: GoldenFile = None,
    dial: Annotated[
        list[str] | None,
        typer.Option(
            "--dial", metavar="GLOB", help="Only these dials; repeatable.", show_default=False
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Times a size must be seen, all of them.")
    ] = 4,
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", help="Fresh cases a correct build has; 0 for none."),
    ] = 20,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Which fresh cases.")] = 0,
    jobs: Jobs = None,
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Find the smallest fault the gate sees, and false alarms."""
    from qsa_bench import campaign_requests, requests

    request = campaign_requests.StrengthRequest(
        stages=tuple(stage or ()),
        target=target,
        golden=golden,
        dials=tuple(dial or ()),
        repeats=repeats,
        trials=trials,
        seed=seed,
        jobs=requests.default_jobs() if jobs is None else jobs,
        results=output,
    )
    return Asked("strength", request, format, quiet, verbose)


def argue(
    stage: Stages = None,
    id: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="GLOB", help="These mutants; repeatable.", show_default=False),
    ] = None,
    inputs: Annotated[
        int, typer.Option("--inputs", metavar="N", help="Generated inputs to compare on.")
    ] = 100_000,
    by_contract: Annotated[
        bool, typer.Option("--by-contract", help="Hold to the stage's checks, not to equal bits.")
    ] = False,
    entry: Annotated[
        str | None,
        typer.Option(
            "--entry",
            metavar="NAME",
            help="Call this entry alone: no other reaches these mutants.",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Gather evidence that mutants are equivalent."""
    from qsa_bench import campaign_requests, requests

    request = campaign_requests.ArgueRequest(
        stages=tuple(stage or ()),
        id_globs=tuple(id or ()),
        inputs=inputs,
        by_contract=by_contract,
        entry=entry,
        jobs=requests.default_jobs() if jobs is None else jobs,
    )
    return Asked("argue", request, format, quiet)


def report(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run folder, its name under --results, a zip of one, or latest.",
            autocompletion=complete_run,
        ),
    ] = "latest",
    results: RunsIn = defaults.RESULTS,
    format: Annotated[
        ReportFormatName, typer.Option("--format", help="How the run is printed.")
    ] = "table",
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="RUN",
            help="Show a campaign beside one on the other target, or beside a `strength` run.",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--plots",
            metavar="DIR",
            help="Also draw a sweep's plots there (extra: plots).",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Print a run's tables again, from its files alone."""
    from qsa_bench import requests

    request = requests.ReportRequest(
        run=run, results=results, plots=plots, beside=tuple(beside or ())
    )
    return Asked("report", request, format, quiet, verbose)
