"""A user's own kernel: a C entry of a shared library, put through a stage's cases and timing.

A map (TOML) says how the entry is called: its arguments in order by the stage's names (or as
constants, scratch, the stream), what it gives and which tie rule it claims. From that come a
kernel record, a build without a compiler, and the stage's cases turned to call it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qsa_bench.errors import NothingSelectedError, UsageError
from qsa_bench.model import DTYPES, STREAM, Argument, Build, Entry, Kernel, Role, Status
from qsa_bench.parity import PLAIN, StageBuilds
from qsa_bench.poison import POISON
from qsa_bench.program import Buffer, Call, Program, Value
from qsa_bench.requests import ForeignRequest
from qsa_bench.stages.base import Case, Interface, Outputs, Stage, View, poisoned_like

TIES = ("exact", "free")
RETURNS = ("status", "nothing")
_KEYS = {"stage", "output", "ties", "returns", "only", "arguments"}
_ARGUMENT_KEYS = {"name", "dtype", "value", "scratch_bytes"}
_SCALARS = ("f32", "f64", "i32", "i64", "u8", "u32")


@dataclass(frozen=True)
class Foreign:
    """A user's entry and what its map says of it.

    `constants` and `scratch` (bytes) are by the names their arguments were given here. `only`
    holds values of scalars that the entry serves: cases with others are left out.
    """

    library: Path
    entry: Entry
    stage: str
    form: str
    ties: str
    constants: Mapping[str, int | float]
    scratch: Mapping[str, int]
    only: Mapping[str, tuple[int, ...]]
    digest: str

    @property
    def kernel(self) -> Kernel:
        """The kernel record that programs name."""
        return Kernel(self.entry.symbol, str(self.library), (self.entry,))

    @property
    def name(self) -> str:
        """What tables call it: "topk_mask of libmine.so"."""
        return f"{self.entry.symbol} of {self.library.name}"

    @property
    def has_stream(self) -> bool:
        """True where the entry takes a stream, so that a graph can hold it."""
        return any(argument.role is Role.STREAM for argument in self.entry.arguments)

    def described(self) -> dict[str, object]:
        """Return what a run's notes say of it."""
        return {
            "library": self.library.name,
            "entry": self.entry.symbol,
            "output": self.form,
            "ties": self.ties,
            "only": {name: list(values) for name, values in self.only.items()},
            "digest": self.digest,
        }

    def builds(self, target: str) -> StageBuilds:
        """Return the library as the build of a stage."""
        code = hashlib.sha256(self.library.read_bytes()).hexdigest()[:32]
        build = Build(
            self.entry.symbol,
            target,
            PLAIN,
            self.digest,
            code,
            "not built here",
            (),
            str(self.library),
        )
        return StageBuilds({PLAIN: {self.entry.symbol: build}})

    def call(self, program: Program, interface: Interface) -> tuple[View, list[Call]] | None:
        """Return how the entry is called for a program; None where it is not its business."""
        view = interface.view(program, self.form)
        if view is None:
            return None
        names = {argument.name for argument in self.entry.arguments}
        for name, argument in interface.arguments.items():
            if argument.optional and name in view.calls[0] and name not in names:
                return None
        for name, allowed in self.only.items():
            if view.calls[0].get(name) not in allowed:
                return None
        wanted = {
            target
            for name, target in view.calls[0].items()
            if name in names and isinstance(target, str)
        }
        # An entry that is not told of an input can't change it; scores are kept for the judge.
        kept = tuple(b for b in view.buffers if b.role is Role.INPUT or b.name in wanted)
        scratch = tuple(
            Buffer(name, "u8", (size,), Role.SCRATCH) for name, size in self.scratch.items()
        )
        calls = [
            Call(self.entry.symbol, self.entry.symbol, self._values(values))
            for values in view.calls
        ]
        return View((*kept, *scratch), view.calls, view.writes), calls

    def _values(self, given: Mapping[str, Value]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for argument in self.entry.arguments:
            if argument.role is Role.STREAM:
                continue
            if argument.name in self.constants:
                values[argument.name] = self.constants[argument.name]
            elif argument.name in self.scratch:
                values[argument.name] = argument.name
            else:
                values[argument.name] = given[argument.name]
        return values


def asked(request: ForeignRequest | None, stages: Sequence[Stage]) -> Foreign | None:
    """Return the user's entry that a request names; UsageError where the stage is left open."""
    if request is None:
        return None
    if len(stages) != 1:
        raise UsageError("--library: say with --stage which stage's contract the library claims")
    return read(request.library, request.entry, request.map_file, stages[0])


def read(library: Path, symbol: str, map_file: Path, stage: Stage) -> Foreign:
    """Read a map for `symbol` of `library` against a stage.

    UsageError, one line, for a missing file or symbol, an unknown key, name, dtype or form, or an
    entry that is given nowhere to write to.
    """
    where = f"reading {map_file}"
    if not library.is_file():
        raise UsageError(f"reading {library}: there is no such library")
    try:
        raw = map_file.read_bytes()
        said: dict[str, Any] = tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: it is no TOML ({error})") from None
    if stage.interface is None:
        raise UsageError(f"{where}: the stage {stage.name} takes no library of yours")
    _only_known(where, said, _KEYS)
    if said.get("stage", stage.name) != stage.name:
        raise UsageError(f"{where}: it maps the stage {said['stage']!r}, not {stage.name}")
    form = _choice(where, said, "output", tuple(stage.interface.forms))
    ties = _choice(where, said, "ties", TIES)
    returns = _choice(where, said, "returns", RETURNS)
    arguments, constants, scratch = _arguments(where, said, stage.interface)
    output = stage.interface.forms[form]
    if output not in {argument.name for argument in arguments}:
        raise UsageError(f"{where}: output is {form!r}, but no argument is named {output!r}")
    entry = Entry(symbol, arguments, void=returns == "nothing")
    content = library.read_bytes()
    if symbol.encode() not in content:
        raise UsageError(f"reading {library}: it has no symbol {symbol!r}")
    digest = hashlib.sha256(content + raw + symbol.encode()).hexdigest()[:32]
    return Foreign(
        library.resolve(),
        entry,
        stage.name,
        form,
        ties,
        constants,
        scratch,
        _only(where, said),
        digest,
    )


def _only_known(where: str, table: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )


def _choice(where: str, table: Mapping[str, Any], key: str, choices: Sequence[str]) -> str:
    value = table.get(key)
    if value not in choices:
        said = "is missing" if value is None else f"is {value!r}"
        raise UsageError(f"{where}: {key} {said}; use {' or '.join(choices)}")
    return str(value)


def _only(where: str, table: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    only = table.get("only", {})
    if not isinstance(only, dict):
        raise UsageError(f"{where}: only is a table of lists, for example budget = [2048]")
    kept: dict[str, tuple[int, ...]] = {}
    for name, values in only.items():
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise UsageError(f"{where}: only.{name} is no list of whole numbers")
        kept[name] = tuple(values)
    return kept


def _arguments(
    where: str, table: Mapping[str, Any], interface: Interface
) -> tuple[tuple[Argument, ...], dict[str, int | float], dict[str, int]]:
    listed = table.get("arguments")
    if not isinstance(listed, list) or not listed or not all(isinstance(a, dict) for a in listed):
        raise UsageError(
            f'{where}: arguments is a list of tables, for example [{{name = "scores"}}]'
        )
    arguments: list[Argument] = []
    constants: dict[str, int | float] = {}
    scratch: dict[str, int] = {}
    for index, said in enumerate(listed):
        at = f"{where}: argument {index}"
        _only_known(at, said, _ARGUMENT_KEYS)
        if len({"name", "value", "scratch_bytes"} & set(said)) != 1:
            raise UsageError(f"{at}: give one of name, value and scratch_bytes")
        dtype = said.get("dtype")
        if dtype is not None and dtype not in _SCALARS:
            raise UsageError(f"{at}: dtype is {dtype!r}; use {', '.join(_SCALARS)}")
        if "value" in said:
            if dtype is None or not isinstance(said["value"], int | float):
                raise UsageError(f"{at}: a constant needs a number and a dtype")
            constants[f"constant_{index}"] = said["value"]
            arguments.append(Argument(f"constant_{index}", dtype, Role.SCALAR))
        elif "scratch_bytes" in said:
            if not isinstance(said["scratch_bytes"], int) or said["scratch_bytes"] < 1:
                raise UsageError(f"{at}: scratch_bytes is {said['scratch_bytes']!r}, no size")
            scratch[f"scratch_{index}"] = said["scratch_bytes"]
            arguments.append(Argument(f"scratch_{index}", "u8", Role.SCRATCH))
        else:
            arguments.append(_named(at, said["name"], dtype, interface))
    names = [argument.name for argument in arguments]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where}: the argument {twice!r} stands twice")
    return tuple(arguments), constants, scratch


def _named(at: str, name: object, dtype: str | None, interface: Interface) -> Argument:
    argument = interface.arguments.get(str(name))
    if argument is None:
        known = ", ".join(interface.arguments)
        raise UsageError(f"{at}: there is no argument {name!r}; use {known}")
    if argument.role is Role.STREAM:
        return STREAM
    if dtype is None or dtype == argument.dtype:
        return replace(argument, optional=False)
    if argument.is_pointer:
        raise UsageError(f"{at}: {name} is {argument.dtype}, which can't be read as {dtype}")
    assert dtype in DTYPES
    return replace(argument, dtype=dtype, optional=False)


def stage_of(stage: Stage, foreign: Foreign) -> Stage:
    """Return a stage whose kernel is the user's entry and whose cases are those it can serve.

    NothingSelectedError when it serves none.
    """
    interface = stage.interface
    assert interface is not None

    def cases(golden: Any) -> list[Case]:
        kept = []
        for case in stage.cases(golden):
            adapted = _adapt(case, foreign, interface)
            if adapted is not None:
                kept.append(adapted)
        if not kept:
            raise NothingSelectedError(f"gating {foreign.name}: it serves no case of {stage.name}")
        return kept

    def replayed(captured: Any) -> Case:
        assert stage.replay is not None
        case = stage.replay(captured)
        adapted = _adapt(case, foreign, interface)
        if adapted is None:
            raise UsageError(
                f"replaying {captured.name}: the contract refuses this input, or {foreign.name} "
                "does not serve it"
            )
        return adapted

    return replace(
        stage,
        name=stage.name,
        summary=f"{foreign.name}, as {stage.name}",
        kernels=(foreign.kernel,),
        cases=cases,
        checks={
            name: text
            for name, text in interface.checks.items()
            if foreign.ties == "exact" or name == "selection"
        },
        replay=replayed if stage.replay is not None else None,
        captures=None,
        numbers={},
        sweep=None,
    )


def _adapt(case: Case, foreign: Foreign, interface: Interface) -> Case | None:
    """Return a case turned to call the user's entry; None where it is not its business."""
    original = case.build()
    called = foreign.call(original, interface)
    if called is None:
        return None
    view, calls = called
    adapted = Program(view.buffers, tuple(calls), original.device)
    judge = interface.judge(foreign.form, foreign.ties)

    def judged(_program: Program, outputs: Outputs) -> Any:
        return judge(original, outputs)

    return replace(
        case,
        build=lambda: adapted,
        judge=judged,
        checked=False,
        counts_bits=False,
        writes=view.writes,
        # A list of no entries may still be filled up with what stands for none.
        may_write=True,
    )


def blind_cases(cases: Sequence[Case]) -> list[str]:
    """Return the cases that an entry which writes nothing would pass though it owes bytes.

    No such library is built: its outputs are known, they are the poison they started as.
    """
    blind: list[str] = []
    for case in cases:
        if not case.writes:
            continue
        program = case.build()
        untouched = {
            buffer.name: poisoned_like(buffer.shape, DTYPES[buffer.dtype][0], POISON)
            for buffer in program.buffers
            if buffer.role is Role.OUTPUT
        }
        if all(found.status is Status.PASS for found in case.judge(program, untouched)):
            blind.append(case.id)
    return blind
