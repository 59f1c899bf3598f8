"""The registry: every module of this package with a `STAGE` is a stage; none is named here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from qsa_bench.errors import NothingSelectedError
from qsa_bench.stages.base import Stage

_NOT_STAGES = {"base"}


@cache
def stage_names() -> tuple[str, ...]:
    """Names of all stages, from the file names alone (nothing is imported)."""
    return tuple(
        sorted(
            info.name
            for info in pkgutil.iter_modules(__path__)
            if info.name not in _NOT_STAGES and not info.name.startswith("_")
        )
    )


@cache
def load_stage(name: str) -> Stage:
    """Import and return one stage; NothingSelectedError names the stages there are."""
    if name not in stage_names():
        raise NothingSelectedError(
            f"selecting stage {name!r}: there is no such stage; choose from "
            f"{', '.join(stage_names())}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    stage = module.STAGE
    if not isinstance(stage, Stage) or stage.name != name:
        raise TypeError(f"{module.__name__}.STAGE is not the stage {name!r}")
    return stage


def select_stages(names: Sequence[str] | None) -> tuple[Stage, ...]:
    """Return the named stages in the registry's order, or all of them when none is named."""
    wanted = tuple(names) if names else stage_names()
    return tuple(load_stage(name) for name in dict.fromkeys(wanted))
