"""What the command line's parts share: the answer of a command, and options that several take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from qsa_bench import defaults

# Spelt out for the help and the completion; a test holds them to the lists they repeat.
TargetName = Literal["host", "cuda"]
ModeName = Literal["plain", "checked"]
ListName = Literal[
    "stages",
    "kernels",
    "cases",
    "checks",
    "clauses",
    "mutants",
    "goldens",
    "runs",
    "exit-codes",
]
ExecutorName = Literal["local", "ray"]
FormatName = Literal["table", "json"]
ReportFormatName = Literal["table", "json", "markdown", "junit", "github", "mutation-json", "html"]


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a command line comes to: a module of qsa_bench.commands, its request, how to show it."""

    command: str
    request: Any
    format: str = "table"
    quiet: bool = False
    verbose: bool = False


def complete_stage(incomplete: str) -> list[str]:
    """Name the stages from their files: importing them would cost more than a key press may."""
    names = (path.stem for path in Path(__file__).parent.glob("stages/*.py"))
    known = (name for name in names if name != "base" and not name.startswith("_"))
    return sorted(name for name in known if name.startswith(incomplete))


def complete_run(incomplete: str) -> list[str]:
    """Name the run folders."""
    folders = (path.parent.name for path in defaults.RESULTS.glob("*/run.json"))
    return sorted(name for name in folders if name.startswith(incomplete))


Stages = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        metavar="NAME",
        help="Only this stage; repeatable. [default: all]",
        autocompletion=complete_stage,
        show_default=False,
    ),
]
Target = Annotated[TargetName, typer.Option("--target", help="Where the kernels run.")]
GoldenFile = Annotated[
    Path | None,
    typer.Option(
        "--golden",
        metavar="FILE",
        help="Use this golden instead of the committed one; only stages that read its kind run.",
        show_default=False,
    ),
]
Seeds = Annotated[
    int,
    typer.Option("--seeds", metavar="N", help="Seeded schedules to run beside FIFO and LIFO."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        help="Processes at a time; never changes a result. [default: one per processor]",
        show_default=False,
    ),
]
Results = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Where the run folder is made.")
]
RunsIn = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="The folder that holds run folders.")
]
Format = Annotated[FormatName, typer.Option("--format", help="How the answer is printed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the headline; no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also builds and timing.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]

Sanitizers = Annotated[
    str | None,
    typer.Option(
        "--sanitizer",
        metavar="LIST",
        help="Also run small cases under compute-sanitizer: memcheck,racecheck,initcheck,synccheck "
        "(cuda).",
        show_default=False,
    ),
]
LibraryFile = Annotated[
    Path | None,
    typer.Option(
        "--library", metavar="FILE", help="Your own kernel: a shared library.", show_default=False
    ),
]
MapFile = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="FILE", help="How its entry is called, TOML.", show_default=False
    ),
]
LibraryEntry = Annotated[
    str | None,
    typer.Option("--entry", metavar="NAME", help="The C entry in --library.", show_default=False),
]
