"""Trials of mutants kept from earlier runs: what each hangs on beside the mutant itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from qsa_bench import equivalence, resources
from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.equivalence import Argument
from qsa_bench.goldens import Golden
from qsa_bench.model import Mutant, Outcome
from qsa_bench.parity import StageBuilds
from qsa_bench.reuse import Outcomes
from qsa_bench.runner import HOST
from qsa_bench.trials import Trial


@dataclass(frozen=True)
class KeptTrials:
    """Kept outcomes of one stage, and the inputs that all its mutants have in common."""

    outcomes: Outcomes
    inputs: tuple[str, ...]
    arguments: Mapping[str, Argument]
    # Who builds each mutant by itself wants to know that it comes to the same.
    separate_builds: bool
    # A run up to the first kill knows less of an automatic mutant than one of every case.
    first_kill: bool

    @classmethod
    def of(
        cls,
        request: MutateRequest,
        stage: str,
        golden: Golden | None,
        builds: StageBuilds,
        control: Mutant,
    ) -> KeptTrials:
        """Return a stage's; nothing is kept on a device, whose runs need not repeat."""
        keeps = request.target == HOST and not request.fresh
        folder = resources.cache_root() / "outcomes" if keeps else None
        digest = golden.digest if golden is not None else ""
        common = (request.target, str(request.seeds), digest, builds.digest, builds.code_digest)
        arguments = equivalence.read(resources.tree_root(), stage)
        return cls(
            Outcomes(folder),
            (*common, control.patch),
            arguments,
            request.separate_builds,
            request.first_kill,
        )

    def _inputs_of(self, mutant: Mutant) -> tuple[str, ...]:
        """Everything beside the mutant itself that its outcome hangs on."""
        separate = ("separate builds",) if self.separate_builds else ()
        if not mutant.operator:
            return (*self.inputs, *separate)
        # nvcc decides whether equal code on the host is equal on the device, too.
        nvcc = str(shutil.which("nvcc") is not None)
        way = ("first kill",) if self.first_kill else ()
        return (*self.inputs, nvcc, repr(self.arguments.get(mutant.id)), *way, *separate)

    def find(self, mutant: Mutant) -> Trial | None:
        """Return what an earlier run found; of Python code its builds say nothing."""
        if _patches_python(mutant):
            return None
        kept = self.outcomes.find(mutant, self._inputs_of(mutant))
        return None if kept is None else Trial(*kept)

    def keep(self, mutant: Mutant, made: Trial) -> None:
        """Keep what ended: not what a clock decided, or a compiler that was stopped."""
        broken = made.result.outcome is Outcome.UNVIABLE and "error:" not in made.log
        if not (_patches_python(mutant) or broken or made.by_clock):
            self.outcomes.keep(mutant, self._inputs_of(mutant), made.result, made.kills)


def _patches_python(mutant: Mutant) -> bool:
    return "\n+++ b/qsa_bench/" in mutant.patch
