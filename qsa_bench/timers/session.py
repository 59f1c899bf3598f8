"""A program's buffers and the subjects that work on them, in the child that owns the context.

A subject is a call of a kernel library or a peer; several share one program's buffers, so that
what is compared reads the same bytes. Buffers are torch tensors: torch's allocator, its streams
and its graphs are what an engine uses. Only this package's modules and the peers import torch.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qsa_bench.peers import PeerUnavailableError, Problem
from qsa_bench.poison import POISON
from qsa_bench.timers.activity import (
    Activity,
    activities,
    dealt,
    described,
    names_of_a_call,
)
from qsa_bench.worker import SCALARS

_TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u32": torch.int32,
}
# A flush reads at least so much: four times the largest L2 there is.
LEAST_FLUSH_BYTES = 256 << 20
_BANDWIDTH_BYTES = 1 << 30
# Fits every L2 that a selection kernel meets, so that a flush shows.
_CACHED_BYTES = 16 << 20
_MATRIX = 8192  # limits.MATRIX_FLOPS


class SubjectError(RuntimeError):
    """A subject that can't be made, or whose entry answers a status."""


@dataclass(frozen=True)
class Subject:
    """Something to launch. `form` names what it returns instead of filling outputs."""

    name: str
    call: Callable[[], Any]
    form: str | None = None
    capturable: bool = True
    why_not: str = ""


@dataclass
class _Buffer:
    raw: Any
    tensor: Any
    role: str


class Session:
    """Buffers and subjects on one device; "cpu" serves tests of everything but the timing."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = torch.device(device)
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._buffers: dict[str, _Buffer] = {}
        self.subjects: dict[str, Subject] = {}
        self._returned: dict[str, Any] = {}
        self._flush: Callable[[], Any] | None = None

    # --- the device ---

    def stream(self) -> int:
        """Return the current stream's handle."""
        return torch.cuda.current_stream().cuda_stream if self.device.type == "cuda" else 0

    def synchronize(self) -> None:
        """Wait for the device; a fault of a kernel surfaces here as torch's error."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def library(self, path: str) -> ctypes.CDLL:
        """Load a library, once a path."""
        if path not in self._libraries:
            self._libraries[path] = ctypes.CDLL(path)
        return self._libraries[path]

    # --- buffers ---

    def load(self, program: Mapping[str, Any], blob: memoryview, spans: Mapping[str, Any]) -> None:
        """Make the program's buffers and fill its inputs; what was loaded before is forgotten."""
        self.unload()
        for spec in program["buffers"]:
            dtype = _TORCH_DTYPES[spec["dtype"]]
            size = math.prod(spec["shape"]) * dtype.itemsize
            raw = torch.empty(size, dtype=torch.uint8, device=self.device)
            places = [(offset * dtype.itemsize, key) for offset, key in spec["segments"]]
            if "tensor" in spec:
                places.append((0, spec["tensor"]))
            buffer = _Buffer(raw, raw.view(dtype).reshape(spec["shape"]), spec["role"])
            if spec["segments"]:
                raw.zero_()
            for offset, key in places:
                data = bytearray(blob[slice(*spans[key])])
                if data:
                    raw[offset : offset + len(data)].copy_(
                        torch.frombuffer(data, dtype=torch.uint8)
                    )
            self._buffers[spec["name"]] = buffer
        self.synchronize()

    def unload(self) -> None:
        """Forget buffers and subjects and give their memory back."""
        self._buffers.clear()
        self.subjects.clear()
        self._returned.clear()

    def poison(self) -> None:
        """Fill every output with the poison byte."""
        for buffer in self._buffers.values():
            if buffer.role == "out":
                buffer.raw.fill_(POISON)

    def outputs(self, name: str) -> dict[str, Any]:
        """Return what a subject's last call gave: raw bytes by buffer, as tensors of u8."""
        subject = self.subjects[name]
        if subject.form is not None:
            kept = self._returned[name].to(torch.int64).contiguous()
            return {subject.form: kept.view(torch.uint8).reshape(-1)}
        return {key: b.raw for key, b in self._buffers.items() if b.role in ("out", "inout")}

    # --- subjects ---

    def add_call(self, name: str, path: str, call: Mapping[str, Any]) -> None:
        """Add a C entry of a library, called with the program's buffers."""
        run, takes_stream = self._c_call(self.library(path), call)
        self.subjects[name] = Subject(
            name,
            run,
            capturable=takes_stream,
            why_not="" if takes_stream else "its entry takes no stream, so no graph can hold it",
        )

    def add_pipeline(
        self, name: str, paths: Mapping[str, str], calls: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add several calls in order as one: C entries, and the engine's launches in Python.

        `paths` are libraries by kernel.
        """
        libraries = {kernel: self.library(path) for kernel, path in paths.items()}
        runs = [
            self._python_call(libraries, call)
            if call.get("python")
            else self._c_call(libraries[call["kernel"]], call)[0]
            for call in calls
        ]

        def run() -> None:
            for each in runs:
                each()

        self.subjects[name] = Subject(name, run)

    def _address_of(self, place: Mapping[str, Any]) -> int:
        return int(self._buffers[place["buffer"]].raw.data_ptr() + place["byte_offset"])

    def _c_call(
        self, library: ctypes.CDLL, call: Mapping[str, Any]
    ) -> tuple[Callable[[], None], bool]:
        """Return what calls a C entry on the current stream, and whether it takes one."""
        entry = getattr(library, call["entry"])
        void = bool(call.get("void"))
        entry.restype = None if void else ctypes.c_int32
        arguments: list[Any] = []
        places: list[int] = []
        for index, argument in enumerate(call["arguments"]):
            if argument.get("stream"):
                places.append(index)
                arguments.append(ctypes.c_void_p(None))
            elif argument.get("null"):
                arguments.append(ctypes.c_void_p(None))
            elif "buffer" in argument:
                arguments.append(ctypes.c_void_p(self._address_of(argument)))
            else:
                arguments.append(SCALARS[argument["scalar"]](argument["value"]))

        def run() -> None:
            for place in places:
                arguments[place] = ctypes.c_void_p(self.stream())
            status = entry(*arguments)
            if not void and status:
                raise SubjectError(f"{call['entry']} answers status {status}")

        return run, bool(places)

    def _python_call(
        self, libraries: Mapping[str, ctypes.CDLL], call: Mapping[str, Any]
    ) -> Callable[[], None]:
        """Return what calls one of the engine's launches, given the stream as a value too."""
        module, _, name = call["python"].partition(":")
        function = getattr(importlib.import_module(module), name)
        values = {
            key: self._address_of(value) if "buffer" in value else value["value"]
            for key, value in call["values"].items()
        }

        def run() -> None:
            status = function(libraries, {**values, "stream": self.stream()})
            if status:
                raise SubjectError(f"{call['python']} answers status {status}")

        return run

    def add_peer(
        self,
        name: str,
        where: str,
        names: Sequence[str],
        call: Mapping[str, Any],
        libraries: Mapping[str, str],
    ) -> str:
        """Add the peer `module:function`; returns its title.

        SubjectError says why it can't do this problem.
        """
        module, _, function_name = where.partition(":")
        try:
            function = getattr(importlib.import_module(module), function_name)
        except (ImportError, AttributeError) as error:
            raise SubjectError(f"loading the peer {where}: {error}") from None
        tensors: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        for argument_name, argument in zip(names, call["arguments"], strict=True):
            if "buffer" in argument:
                buffer = self._buffers[argument["buffer"]]
                start = argument["byte_offset"] // buffer.tensor.itemsize
                whole = buffer.tensor
                tensors[argument_name] = whole.reshape(-1)[start:] if start else whole
            elif "scalar" in argument:
                scalars[argument_name] = argument["value"]
        problem = Problem(
            tensors,
            scalars,
            {key: self.library(path) for key, path in libraries.items()},
            self.stream,
        )
        form = getattr(function, "form", None)
        try:
            made = function(problem)
        except PeerUnavailableError as error:
            raise SubjectError(str(error)) from None

        def run() -> None:
            self._returned[name] = made()

        self.subjects[name] = Subject(name, run, form)
        return str(getattr(function, "title", where))

    def add_calibration(self, path: str) -> dict[str, tuple[int, int]]:
        """Add an empty kernel and plain traffic as subjects: name to bytes read and written."""
        self.set_flush(path)
        library = self.library(path)
        words = _BANDWIDTH_BYTES // 4
        source = torch.randint(
            0, 2**31, (words,), dtype=torch.int32, device=self.device
        )  # zeros would move faster than data
        target = torch.empty_like(source)
        sink = torch.zeros(1, dtype=torch.int32, device=self.device)
        from_, to, into = (_address(tensor) for tensor in (source, target, sink))
        few = _CACHED_BYTES // 4

        def entry(symbol: str, *arguments: Any) -> Callable[[], None]:
            function = getattr(library, symbol)

            def run(_alive: Any = (source, target, sink)) -> None:
                status = function(*arguments, ctypes.c_void_p(self.stream()))
                if status:
                    raise SubjectError(f"{symbol} answers status {status}")

            return run

        sized, small = ctypes.c_int64(words), ctypes.c_int64(few)
        value = ctypes.c_uint32(0x12345678)
        left, right = (
            torch.randn(_MATRIX, _MATRIX, dtype=torch.bfloat16, device=self.device)
            for _ in range(2)
        )
        product = torch.empty_like(left)
        added = {
            "empty kernel": (entry("bench_empty"), (0, 0)),
            "copy": (entry("bench_copy", from_, to, sized), (_BANDWIDTH_BYTES, _BANDWIDTH_BYTES)),
            "read": (entry("bench_read", from_, into, sized), (_BANDWIDTH_BYTES, 0)),
            "write": (entry("bench_write", to, sized, value), (0, _BANDWIDTH_BYTES)),
            "read 16 MiB": (entry("bench_read", from_, into, small), (_CACHED_BYTES, 0)),
            "bf16 matrix product": (lambda: torch.mm(left, right, out=product), (0, 0)),
        }
        for name, (call, _) in added.items():
            self.subjects[name] = Subject(name, call)
        return {name: traffic for name, (_, traffic) in added.items()}

    def set_flush(self, path: str) -> None:
        """Make `flush` read more memory than the L2 holds, by a kernel of that library; once."""
        if self._flush is not None:
            return
        size = LEAST_FLUSH_BYTES
        if self.device.type == "cuda":
            size = max(size, 4 * torch.cuda.get_device_properties(self.device).L2_cache_size)
        buffer = torch.zeros(size // 4, dtype=torch.int32, device=self.device)
        sink = torch.zeros(1, dtype=torch.int32, device=self.device)
        function = self.library(path).bench_read
        arguments = (_address(buffer), _address(sink), ctypes.c_int64(buffer.numel()))

        def run(_alive: Any = (buffer, sink)) -> None:
            status = function(*arguments, ctypes.c_void_p(self.stream()))
            if status:
                raise SubjectError(f"bench_read answers status {status}")

        self._flush = run

    def flush(self) -> None:
        """Read what pushes everything else out of the L2; SubjectError before `set_flush`."""
        if self._flush is None:
            raise SubjectError("nothing to flush the cache with was given")
        self._flush()


def _address(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


class Profiler:
    """CUPTI through torch's profiler: what the device did while some calls were made."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def record(self, launch: Callable[[], Any]) -> list[Activity]:
        """Return the device activities of `launch`, waited for."""
        return activities(self._profile(launch).profiler.kineto_results.events())

    def names(self, call: Callable[[], Any], calls: int = 3) -> tuple[str, ...]:
        """Return what one call does on the device; LostRecordsError where calls differ."""
        call()  # whatever a first call alone does

        def several() -> None:
            for _ in range(calls):
                call()

        return names_of_a_call(self.record(several), calls)

    def describe(
        self, calls: Mapping[str, Callable[[], Any]], names: Mapping[str, tuple[str, ...]]
    ) -> dict[str, list[str]]:
        """Return a line for each kernel of one call of each: name, grid, block, registers.

        Empty where the exported trace does not fit the names.
        """
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "trace.json"

            def one_each() -> None:
                for call in calls.values():
                    call()

            self._profile(one_each).profiler.kineto_results.save(str(path))
            lines = described(json.loads(path.read_text(errors="replace")))
        return dealt(lines, {name: names[name] for name in calls})

    def _profile(self, launch: Callable[[], Any]) -> Any:
        from torch.profiler import ProfilerActivity, profile

        self._session.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            launch()
            self._session.synchronize()
        return profiled


def capture(session: Session, subject: Subject, calls: int) -> Any:
    """Return a CUDA graph of that many calls; SubjectError where it can't be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(calls):
                subject.call()
    except (RuntimeError, SubjectError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SubjectError(f"it can't be captured in a graph: {first}") from None
    session.synchronize()
    graph.replay()
    session.synchronize()
    return graph
