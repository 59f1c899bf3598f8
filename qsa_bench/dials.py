"""Dials: faults of a size that can be turned, applied to what a kernel returned before it is judged.

Each is chosen by the outputs' declared type, so that every stage has them; what only a stage knows
the meaning of (a winner, a cut) it plants itself (`Stage.faults`). A fault is put into outputs and
not into code: its size is then exact, no compiler stands between two steps, and it is the same on
every target. What it can't show is a fault in the way a kernel runs (a race, a bound).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from qsa_bench import returned
from qsa_bench.bf16 import round_to_bf16, to_float32
from qsa_bench.model import Role
from qsa_bench.program import Buffer, Program
from qsa_bench.stages.base import Fault, Outputs

Array = npt.NDArray[Any]
Changed = Iterator[tuple[int, Outputs]]

# The word of a float, its mantissa's highest bit, its exponent's bits, and the bits of 1.
_FLOATS: Mapping[str, tuple[str, int, int, int]] = {
    "f32": ("uint32", 1 << 22, 0x7F800000, 0x3F800000),
    "bf16": ("uint16", 1 << 6, 0x7F80, 0x3F80),
    "f64": ("uint64", 1 << 51, 0x7FF0000000000000, 0x3FF0000000000000),
}
# Steps an octave of the dials that have a size: a bracket is then 19% wide.
_STEPS = 4
_LEAST_SCALE, _MOST_ULP = -27, 22


@dataclass(frozen=True)
class Subject:
    """A case's program and what the production kernel returned for it."""

    case: str
    program: Program
    outputs: Outputs

    @cached_property
    def written(self) -> dict[str, Array]:
        """Which elements the kernel wrote, by output: no fault of its arithmetic is elsewhere."""
        return {
            buffer.name: returned.written(buffer, self.outputs[buffer.name])
            for buffer in self.program.buffers
            if buffer.role in (Role.OUTPUT, Role.INOUT)
        }

    def buffers(self, floats: bool) -> list[Buffer]:
        """Return the outputs that hold floats, or those that hold integers, and have elements."""
        return [
            buffer
            for buffer in self.program.buffers
            if buffer.name in self.written and buffer.elements
            if (buffer.dtype in _FLOATS) is floats
        ]


@dataclass(frozen=True)
class Dial:
    """A fault and the sizes it is turned to, ascending.

    `apply(subjects, size, repeat)` yields the places of the subjects that it changed with their
    outputs; which elements, and to which side, follows from the repeat's number. `show` writes a
    size as a person reads it.
    """

    name: str
    sentence: str
    sizes: tuple[float, ...]
    apply: Callable[[Sequence[Subject], float, int], Changed]
    show: Callable[[float], str]


def dials_of(subjects: Sequence[Subject], faults: Mapping[str, Fault]) -> list[Dial]:
    """Return the dials that can be turned on these outputs."""
    found: list[Dial] = []
    if any(subject.buffers(floats=True) for subject in subjects):
        found += [_scale(), _bias()]
    elements = sum(array.size for subject in subjects for array in subject.written.values())
    if elements:
        found.append(_corrupt(elements))
    whole = [index for index, subject in enumerate(subjects) if subject.buffers(floats=False)]
    if whole:
        sentence = (
            "one bit of the last row of a mask (without one: of an integer output) is flipped"
        )
        found.append(
            _planted("last-row-bit", f"{sentence}, in so many cases", whole, _last_row_bit)
        )
    for name, fault in faults.items():
        able = [
            index
            for index, subject in enumerate(subjects)
            if fault.plant(subject.program, subject.outputs, np.random.default_rng(0)) is not None
        ]
        if able:
            found.append(_planted(name, f"{fault.sentence}, in so many cases", able, fault.plant))
    return found


def _side(repeat: int) -> int:
    return -1 if repeat % 2 else 1


def _ladder(first: int, last: int) -> tuple[float, ...]:
    """Return powers of two from 2**first to 2**last with the steps between them."""
    return tuple(2.0 ** (first + step / _STEPS) for step in range((last - first) * _STEPS + 1))


def _counts(most: int) -> tuple[float, ...]:
    """Return 1, 2, 4, ... and `most` itself."""
    doubled = [1 << step for step in range(most.bit_length())]
    return tuple(float(count) for count in dict.fromkeys([*doubled, most]))


def _scale() -> Dial:
    def apply(subjects: Sequence[Subject], size: float, repeat: int) -> Changed:
        factor = 1.0 + _side(repeat) * size

        def scaled(buffer: Buffer, values: Array) -> Array:
            with np.errstate(over="ignore", invalid="ignore"):
                if buffer.dtype == "bf16":
                    return round_to_bf16(to_float32(values).astype(np.float64) * factor)
                return (values.astype(np.float64) * factor).astype(values.dtype)

        return _every_float(subjects, scaled)

    return Dial(
        "scale",
        "every float that was written is multiplied by 1 + e, or by 1 - e",
        _ladder(_LEAST_SCALE, 0),
        apply,
        lambda size: f"{size:.3g}",
    )


def _bias() -> Dial:
    def apply(subjects: Sequence[Subject], size: float, repeat: int) -> Changed:
        return _every_float(
            subjects, lambda buffer, values: moved(buffer.dtype, values, _side(repeat) * int(size))
        )

    sizes = dict.fromkeys(float(round(size)) for size in _ladder(0, _MOST_ULP))
    return Dial(
        "bias",
        "every float that was written is moved by k units in its last place, up or down",
        tuple(sizes),
        apply,
        lambda size: f"{size:.0f} ULP",
    )


def _corrupt(elements: int) -> Dial:
    def apply(subjects: Sequence[Subject], size: float, repeat: int) -> Changed:
        # A smaller dose's elements are among a larger one's.
        order = np.random.default_rng(repeat).permutation(elements)
        chosen = np.sort(order[: int(size)])
        start = 0
        for index, subject in enumerate(subjects):
            outputs: dict[str, Array] = {}
            for name in subject.written:
                array = subject.outputs[name]
                first, last = np.searchsorted(chosen, (start, start + array.size))
                if first < last:
                    dtype = subject.program.buffer(name).dtype
                    outputs[name] = _flipped(dtype, array, chosen[first:last] - start)
                start += array.size
            if outputs:
                yield index, {**subject.outputs, **outputs}

    return Dial(
        "corrupt",
        "one of N elements of all cases' outputs is changed: a float by a quarter to a half (a zero "
        "becomes 1), an integer by its lowest bit",
        _counts(max(elements // 8, 1)),
        apply,
        lambda size: f"1 of {elements / size:,.0f}",
    )


def _planted(
    name: str,
    sentence: str,
    able: Sequence[int],
    plant: Callable[[Program, Outputs, np.random.Generator], Outputs | None],
) -> Dial:
    """Return the dial that plants a fault of one place in ever more cases."""

    def apply(subjects: Sequence[Subject], size: float, repeat: int) -> Changed:
        chosen = np.random.default_rng(repeat).permutation(able)[: int(size)]
        for index in sorted(chosen.tolist()):
            subject, random = subjects[index], np.random.default_rng([repeat, index])
            outputs = plant(subject.program, subject.outputs, random)
            if outputs is not None:
                yield index, outputs

    most = len(able)
    return Dial(name, sentence, _counts(most), apply, lambda size: f"{size:.0f} of {most} cases")


def _last_row_bit(
    program: Program, outputs: Outputs, random: np.random.Generator
) -> Outputs | None:
    integers = [
        buffer
        for buffer in program.buffers
        if buffer.role in (Role.OUTPUT, Role.INOUT) and buffer.dtype not in _FLOATS
        if buffer.elements
    ]
    masks = [buffer for buffer in integers if buffer.dtype == "u8"]
    buffer = (masks or integers)[int(random.integers(len(masks or integers)))]
    row = buffer.elements // buffer.shape[0] if buffer.shape else 1
    place = buffer.elements - row + int(random.integers(row))
    changed = _flipped(buffer.dtype, outputs[buffer.name], np.array([place]))
    return {**outputs, buffer.name: changed}


def _flipped(dtype: str, array: Array, places: Array) -> Array:
    """Return a copy with the elements at flat `places` changed, each to a clearly other value."""
    copy = np.ascontiguousarray(array).copy()
    word, bit, exponent, one = _FLOATS.get(dtype, (f"uint{8 * copy.itemsize}", 1, 0, 0))
    bits = copy.reshape(-1).view(word)
    was = bits[places]
    bits[places] = was ^ np.array(bit, dtype=word)
    if dtype in _FLOATS:
        # Of a zero, or what is next to it, the mantissa is nothing that a bound could see.
        tiny = (was & np.array(exponent, dtype=word)) == 0
        bits[places[tiny]] = one
    return copy


def _every_float(subjects: Sequence[Subject], change: Callable[[Buffer, Array], Array]) -> Changed:
    """Yield the subjects with every finite float that was written changed."""
    for index, subject in enumerate(subjects):
        outputs: dict[str, Array] = {}
        for buffer in subject.buffers(floats=True):
            array = subject.outputs[buffer.name]
            value = to_float32(array) if buffer.dtype == "bf16" else array
            usable = subject.written[buffer.name] & np.isfinite(value)
            copy = array.copy()
            copy[usable] = change(buffer, array[usable])
            outputs[buffer.name] = copy
        if outputs:
            yield index, {**subject.outputs, **outputs}


def moved(dtype: str, values: Array, steps: int) -> Array:
    """Return finite floats moved by `steps` in the order of all floats, not past the largest."""
    word, *_ = _FLOATS[dtype]
    width = 8 * np.dtype(word).itemsize
    raw = np.ascontiguousarray(values).view(word).astype(object if width == 64 else np.int64)
    sign = 1 << (width - 1)
    # Both zeros are 0, and one step is one step whatever the sign.
    ordered = np.where(raw >= sign, sign - raw, raw) + steps
    most = {"f32": 0x7F7FFFFF, "bf16": 0x7F7F, "f64": 0x7FEFFFFFFFFFFFFF}[dtype]
    ordered = np.clip(ordered, -most, most)
    bits = np.where(ordered < 0, sign - ordered, ordered)
    turned: Array = bits.astype(word).view(values.dtype)
    return turned
