"""The command line: flags to a request, the request to a command, its result to the terminal.

No logic here. Everything but the standard library and typer is imported when a command runs, so
that `--help` and completion answer at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import qsa_bench
from qsa_bench import cli_mutation, cli_timing, defaults, process
from qsa_bench.cli_options import (
    Asked,
    Force,
    Format,
    GoldenFile,
    Jobs,
    LibraryEntry,
    LibraryFile,
    ListName,
    MapFile,
    ModeName,
    Quiet,
    Results,
    RunsIn,
    Sanitizers,
    Seeds,
    Stages,
    Target,
    Verbose,
)
from qsa_bench.errors import QsaBenchError
from qsa_bench.exit_codes import ExitCode

PROGRAM = "qsa-bench"

_CODES = "\n".join(f"  {int(code):>3}  {code.sentence}" for code in ExitCode)

app = typer.Typer(
    name=PROGRAM,
    help="Gate sparse-attention indexer kernels, and prove the gate by mutants.",
    epilog=f"\b\nExit codes:\n{_CODES}",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
golden_app = typer.Typer(help="Dump goldens from the reference, verify them.", no_args_is_help=True)
app.add_typer(golden_app, name="golden")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"{PROGRAM} {qsa_bench.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options before a command."""


@app.command()
def doctor(
    target: Target = "host",
    results: RunsIn = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Say what this machine offers and what it lacks."""
    from qsa_bench import requests

    request = requests.DoctorRequest(target=target, results=results)
    return Asked("doctor", request, format, quiet)


@app.command("list")
def list_(
    what: Annotated[ListName, typer.Argument(metavar="WHAT", help="What to list.")] = "stages",
    stage: Stages = None,
    target: Target = "host",
    golden: GoldenFile = None,
    results: RunsIn = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """List stages, cases, mutants and whatever else there is."""
    from qsa_bench import requests

    request = requests.ListRequest(
        what=what, stages=tuple(stage or ()), target=target, golden=golden, results=results
    )
    return Asked("listing", request, format, quiet)


@app.command()
def build(
    stage: Stages = None,
    target: Target = "host",
    mode: Annotated[
        ModeName | None,
        typer.Option("--mode", help="Host mode. [default: both]", show_default=False),
    ] = None,
    arch: Annotated[
        list[int] | None,
        typer.Option(
            "--arch",
            metavar="CC",
            help="Compute capability (80, 90, ...) for cuda; repeatable. [default: the device's]",
            show_default=False,
        ),
    ] = None,
    all_architectures: Annotated[
        bool, typer.Option("--all-architectures", help="Every one that cuda kernels support.")
    ] = False,
    few_shapes: Annotated[
        bool,
        typer.Option(
            "--few-shapes",
            help="Few shapes of a kernel's launch table, as mutants are built (cuda).",
        ),
    ] = False,
    warnings_as_errors: Annotated[
        bool, typer.Option("--warnings-as-errors", help="A compiler's warning fails the build.")
    ] = False,
    bench: Annotated[
        bool,
        typer.Option(
            "--bench", help="Instead those of no stage: kernels/bench and kernels/peers (cuda)."
        ),
    ] = False,
    resources: Annotated[
        bool, typer.Option("--resources", help="Show what each kernel uses (cuda); kept as a run.")
    ] = False,
    jobs: Jobs = None,
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Compile kernels, those that changed."""
    from qsa_bench import requests

    request = requests.BuildRequest(
        stages=tuple(stage or ()),
        target=target,
        mode=mode,
        architectures=tuple(arch or ()),
        all_architectures=all_architectures,
        few_shapes=few_shapes,
        warnings_as_errors=warnings_as_errors,
        bench=bench,
        resources=resources,
        results=output,
        jobs=requests.default_jobs() if jobs is None else jobs,
    )
    return Asked("build", request, format, quiet, verbose)


@app.command()
def gate(
    stage: Stages = None,
    target: Target = "host",
    golden: GoldenFile = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="GLOB",
            help="Only cases whose id matches (see `list cases`); repeatable.",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = defaults.SEEDS,
    save_failures: Annotated[
        bool,
        typer.Option(
            "--save-failures/--no-save-failures",
            help="Keep a failing case's inputs, shrunk, for `replay`.",
        ),
    ] = True,
    sanitizer: Sanitizers = None,
    against_host: Annotated[
        bool,
        typer.Option(
            "--against-host", help="Also hold the emulation's outputs to the device's (cuda)."
        ),
    ] = False,
    library: LibraryFile = None,
    entry: LibraryEntry = None,
    map: MapFile = None,
    jobs: Jobs = None,
    output: Results = defaults.RESULTS,
    format: Format = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Asked:
    """Hold kernels to the golden and to adversarial inputs."""
    from qsa_bench import requests

    request = requests.GateRequest(
        stages=tuple(stage or ()),
        target=target,
        golden=golden,
        case_globs=tuple(case or ()),
        seeds=seeds,
        jobs=requests.default_jobs() if jobs is None else jobs,
        results=output,
        save_failures=save_failures,
        foreign=requests.foreign(library, entry, map),
        sanitizers=requests.sanitizers(sanitizer, target),
        against_host=against_host,
    )
    return Asked("gate", request, format, quiet, verbose)


@app.command()
def replay(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel (see `list kernels`).")],
    inputs: Annotated[
        Path, typer.Argument(metavar="INPUTS", help="Captured tensors, a safetensors file.")
    ],
    mutant: Annotated[
        str | None,
        typer.Option("--mutant", metavar="ID", help="Run this mutant instead.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Write the outputs here.", show_default=False
        ),
    ] = None,
    force: Force = False,
    target: Target = "host",
    library: LibraryFile = None,
    entry: LibraryEntry = None,
    map: MapFile = None,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Run a kernel on captured inputs against the oracle."""
    from qsa_bench import requests

    request = requests.ReplayRequest(
        kernel=kernel,
        inputs=inputs,
        mutant=mutant,
        output=output,
        force=force,
        target=target,
        foreign=requests.foreign(library, entry, map),
    )
    return Asked("replay", request, format, quiet)


@golden_app.command("dump")
def golden_dump(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The safetensors file to write.")],
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="Kind of golden.")] = "qsa",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the weights.")] = 0,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE", help="Your indexer weights.", show_default=False),
    ] = None,
    hidden: Annotated[
        Path | None,
        typer.Option("--hidden", metavar="FILE", help="Your hidden states.", show_default=False),
    ] = None,
    force: Force = False,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Compute a golden with the unmodified reference (extra: reference)."""
    from qsa_bench import requests

    request = requests.GoldenDumpRequest(
        kind=kind, out=out, seed=seed, weights=weights, hidden=hidden, force=force
    )
    return Asked("golden", request, format, quiet)


@golden_app.command("verify")
def golden_verify(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A golden. [default: the committed ones]", show_default=False
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Its kind.", show_default=False),
    ] = None,
    format: Format = "table",
    quiet: Quiet = False,
) -> Asked:
    """Hold a golden to its layout, checkpoint and masks."""
    from qsa_bench import requests

    request = requests.GoldenVerifyRequest(path=path, kind=kind)
    return Asked("golden", request, format, quiet)


cli_mutation.add_commands(app)
cli_timing.add_commands(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (sys.argv's by default) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    process.prepare()
    fault = process.working_folder_fault()
    if fault:
        _complain(fault)
        return int(ExitCode.USAGE)
    try:
        asked = app(words, prog_name=PROGRAM, standalone_mode=False)
        if not isinstance(asked, Asked):
            return int(asked or 0)
        return _carry_out(asked, (PROGRAM, *words))
    except QsaBenchError as error:
        _complain(str(error))
        return int(error.exit_code)
    except typer.TyperException as error:
        return _refuse(error)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted; what was finished is in the run folder")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        process.drop_stdout()
        return int(ExitCode.OK)
    except Exception as error:
        import traceback

        refused = process.refusal(error) if isinstance(error, OSError) else ""
        if refused:
            process.drop_stdout()
            _complain(refused)
            return int(ExitCode.ENVIRONMENT_MISSING)
        traceback.print_exc()
        _complain("this is a bug in qsa-bench; please report it with the lines above")
        return int(ExitCode.BUG)


def _carry_out(asked: Asked, argv: tuple[str, ...]) -> int:
    """Run the command and show its result; its exit code stands even if nobody reads on."""
    from qsa_bench import console, results

    request = asked.request
    if any(field.name == "argv" for field in dataclasses.fields(request)):
        request = dataclasses.replace(request, argv=argv)
    command = importlib.import_module(f"qsa_bench.commands.{asked.command}")
    result = command.run(request, console.progress(quiet=asked.quiet))
    try:
        if asked.format == "json":
            print(json.dumps(results.document(result), indent=2, allow_nan=False))
        elif asked.format == "markdown":
            print(results.markdown(result), end="")
        elif asked.format in results.FORMATS:
            print(results.exported(result, asked.format), end="")
        else:
            console.show(results.page(result), quiet=asked.quiet, verbose=asked.verbose)
        sys.stdout.flush()
    except BrokenPipeError:
        process.drop_stdout()
    # A report that could be read is a success, whatever it tells.
    return int(ExitCode.OK) if asked.command == "report" else int(results.exit_code(result))


def _refuse(error: typer.TyperException) -> int:
    """Answer a command line that makes no sense, in one line (no command at all: the help)."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        message = error.format_message().rstrip(".").replace("Value error, ", "")
        command = context.command_path if context is not None else PROGRAM
        _complain(f"{message}; see `{command} --help`")
    return int(ExitCode.USAGE)


def _complain(message: str) -> None:
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
