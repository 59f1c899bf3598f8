"""What a command line asks of campaigns: run, list, merge them, argue about their mutants.

Data, as in requests.py; apart from it because there is much of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qsa_bench import defaults
from qsa_bench.errors import UsageError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.model import Mutant
from qsa_bench.requests import check, default_jobs


def shard_of(text: str) -> tuple[int, int]:
    """Return (K, N) of a shard given as K/N, counted from 1; UsageError for anything else."""
    first, slash, last = text.partition("/")
    if not (slash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise UsageError(f"--shard {text}: give K/N with K from 1 to N, as in 1/4 to 4/4")
    return int(first), int(last)


@dataclass(frozen=True)
class MutateRequest:
    """Run the mutants of stages. `id_globs` match "<stage>/<name>"; none: all.

    `auto` adds the automatic mutants; `operators` are globs of their operators, and with any only
    automatic ones run. `in_diff` is a diff: only what it touches. `sample` mutants of all, drawn
    with `sample_seed`; `shard` is (K, N), K from 1. After `stop_after_s` no further mutant begins.
    `first_kill` runs an automatic mutant no further than to the first check that sees it.
    `separate_builds` builds each mutant by itself, though many could share a build.
    `executor` is "local" or "ray", which spreads them over the cluster at `address`. `results` None
    keeps nothing on the disk. `fresh` runs every mutant, also one whose outcome is kept from an
    earlier run. `sanitizers` are tools that a mutant on a device is run under, too.
    """

    stages: tuple[str, ...] = ()
    target: str = "host"
    golden: Path | None = None
    id_globs: tuple[str, ...] = ()
    seeds: int = defaults.MUTATE_SEEDS
    jobs: int = field(default_factory=default_jobs)
    results: Path | None = defaults.RESULTS
    argv: tuple[str, ...] = ()
    fresh: bool = False
    sanitizers: tuple[str, ...] = ()
    auto: bool = False
    operators: tuple[str, ...] = ()
    in_diff: Path | None = None
    sample: int | None = None
    sample_seed: int = 0
    shard: tuple[int, int] | None = None
    stop_after_s: float | None = None
    executor: str = "local"
    address: str | None = None
    first_kill: bool = False
    separate_builds: bool = False

    def __post_init__(self) -> None:
        check(self.target, self.jobs, self.seeds)
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"--sample {self.sample}: at least one mutant is needed")
        if self.stop_after_s is not None and self.stop_after_s <= 0:
            raise UsageError(f"--max-time {self.stop_after_s}: a time above 0 is needed")
        if self.address is not None and self.executor != "ray":
            raise UsageError("--address goes with --executor ray")
        if self.operators and not self.auto:
            raise UsageError("--operator goes with --auto")
        if self.first_kill and (not self.auto or self.target != "host"):
            raise UsageError("--first-kill goes with --auto and --target host")


@dataclass(frozen=True)
class MutantsRequest:
    """Show the mutants that a MutateRequest would run, and run none. `diffs` shows each patch."""

    campaign: MutateRequest
    diffs: bool = False


@dataclass(frozen=True)
class MutantDiffs:
    """Mutants as a person reads them: id, what it proves, and the patch."""

    mutants: tuple[Mutant, ...]


@dataclass(frozen=True)
class MergeRequest:
    """Join the shards of one campaign: run folders, names under `results`, or zips."""

    runs: tuple[str, ...]
    results: Path = defaults.RESULTS
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArgueRequest:
    """Run mutants and the production kernel on generated inputs; `by_contract` lets bits differ.

    `entry` is the one to call where no other reaches what the mutants change.
    """

    stages: tuple[str, ...] = ()
    id_globs: tuple[str, ...] = ()
    inputs: int = 100_000
    by_contract: bool = False
    entry: str | None = None
    jobs: int = field(default_factory=default_jobs)

    def __post_init__(self) -> None:
        check("host", self.jobs)
        if self.inputs < 1:
            raise UsageError(f"--inputs {self.inputs}: at least one input is needed")
        if not self.id_globs:
            raise UsageError("argue: name the mutants, by --id")


@dataclass(frozen=True)
class StrengthRequest:
    """Audit the gates of stages: the smallest faults they see, and how often they alarm falsely.

    `dials` are globs of dials; none: all. Each size is tried `repeats` times; every correct build
    has `trials` cases, 0 for none, drawn with `seed`.
    """

    stages: tuple[str, ...] = ()
    target: str = "host"
    golden: Path | None = None
    dials: tuple[str, ...] = ()
    repeats: int = 4
    trials: int = 20
    seed: int = 0
    jobs: int = field(default_factory=default_jobs)
    results: Path = defaults.RESULTS
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self.target, self.jobs)
        if self.repeats < 2:
            raise UsageError(f"--repeats {self.repeats}: a fault has two sides, so at least 2")
        if not 0 <= self.trials <= 10_000:
            raise UsageError(f"--trials {self.trials}: 0 to 10,000 cases a build")


@dataclass(frozen=True)
class Argued:
    """Lines for equivalent.toml, and mutants that some input tells from the production kernel."""

    lines: tuple[str, ...]
    differing: tuple[str, ...]
    exit_code: ExitCode
