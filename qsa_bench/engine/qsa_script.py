"""A scripted run of the QSA runtime over an arena, for the gate: standard library only.

`run(libraries, values)` does the operations of a table of int32 words, in order, and writes what
each returned; the runtime's own rules decide what is refused. It is what an engine would write, cut
down to numbers, so that a child process without torch can run it on the host and on a CUDA device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from qsa_bench.engine import qsa_errors as errors
from qsa_bench.engine.cuda_graph import CapturedGraph, GraphError
from qsa_bench.engine.qsa_decode import QsaCapturedDecode, QsaDecodeBatch
from qsa_bench.engine.qsa_geometry import ATTENTION_DIM, FUSED, KV_HEADS, QUERY_HEADS, QsaGeometry
from qsa_bench.engine.qsa_indexer import QsaCache, QsaIndexer, QsaSlab
from qsa_bench.engine.qsa_launch import QsaKernels, row
from qsa_bench.engine.qsa_memory import ArenaMemory, ArenaTensor, Tensor
from qsa_bench.engine.qsa_sequence import QsaSequence, QsaSnapshot

# Operations, and words of one: operation, sequence, then as each method says.
INGEST, DECODE, PREFILL, REWIND, SNAPSHOT, RESTORE, RELEASE, BATCH, MISUSE, REPLAY = range(1, 11)
WORDS = 6
# Misuses of the Python surface.
(
    ROWS_OF_F32,
    ROWS_ELSEWHERE,
    NARROW_ROWS,
    NO_ROWS,
    SHORT_TABLES,
    SHORT_BLOCK_TABLE,
    VOID_SLAB,
    FREE_FAILS,
    SHORT_CONTEXT,
    LAUNCH_FAILS,
    PREFILL_FAILS,
    FRACTIONAL_POSITION,
    UNALIGNED_ROWS,
    SLAB_OF_REPLACED,
    SLAB_OF_RELEASED,
) = range(15)
OK = 0
_CODES = (
    (errors.QsaTensorError, 1),
    (errors.QsaOrderError, 2),
    (errors.QsaCapacityError, 3),
    (errors.QsaReleasedError, 4),
    (errors.QsaEngineError, 5),
    (MemoryError, 6),
)
TENSOR, ORDER, CAPACITY, RELEASED, ENGINE, FREE = (code for _, code in _CODES)
LAUNCH = 1000  # and the status
Launch = tuple[str, tuple[Tensor | int | float | None, ...]]
UNSUPPORTED = 8  # kernels/common/status.h


class _FailingFree(ArenaMemory):
    """Memory whose next free fails when told so."""

    failing = False

    def free(self, tensor: Tensor) -> None:
        if self.failing:
            self.failing = False
            raise MemoryError("the first free fails")
        super().free(tensor)


class _ScriptKernels(QsaKernels):
    """Kernels of which one launch fails when told so, as on a device that can't run it.

    While `taken` is a list, launches are put down there and not made.
    """

    failing = ""
    taken: list[Launch] | None = None

    def launch(self, entry: str, *arguments: Tensor | int | float | None) -> None:
        if self.taken is not None:
            self.taken.append((entry, arguments))
            return
        if entry == self.failing:
            self.failing = ""
            raise errors.QsaLaunchError(entry, UNSUPPORTED)
        super().launch(entry, *arguments)


def run(libraries: Mapping[str, ctypes.CDLL], values: Mapping[str, Any]) -> int:
    """Run a script; values are addresses and scalars by the names of `_Run`. Returns 0."""
    script = _Run(libraries, values)
    try:
        script.run()
    finally:
        if script.graph is not None:
            script.graph.close()
    return OK


class _Run:
    def __init__(self, libraries: Mapping[str, ctypes.CDLL], values: Mapping[str, Any]) -> None:
        self.values = values
        cuda = not hasattr(libraries["qsa_ingest"], "qsa_host_reset")
        self.memory = _FailingFree(values["arena"], values["arena_bytes"], cuda)
        self.driver = ctypes.CDLL("libcuda.so.1") if cuda else None
        self.stream: int | None = None
        self.kernels = _ScriptKernels(libraries, lambda: self.stream)
        self.indexer = self._indexer(values["capacity"])
        count = values["sequences"]
        self.sequences = [QsaSequence(self.indexer) for _ in range(count)]
        self.snapshots: dict[int, QsaSnapshot] = {}
        self.batch: QsaDecodeBatch | None = None
        self.captured: QsaCapturedDecode | None = None
        self.graph: CapturedGraph | None = None

    def _indexer(self, capacity: int) -> QsaIndexer:
        values = self.values
        geometry = QsaGeometry(
            capacity=capacity,
            budget=values["budget"],
            slab_rows=values["slab_rows"],
            page_tokens=values["page_tokens"],
            dense_prefill=bool(values["dense_prefill"]),
            scalar_scores=bool(values["scalar_scores"]),
        )
        weights = [self.tensor(name, (128,)) for name in ("q_norm_weight", "k_norm_weight")]
        tables = [self.tensor(name, (values["capacity"], 64)) for name in ("cos", "sin")]
        return QsaIndexer(self.kernels, self.memory, geometry, *weights, *tables)

    def tensor(self, name: str, shape: tuple[int, ...], first: int = 0) -> ArenaTensor:
        """Return a bf16 buffer of the script's from row `first` on."""
        whole = ArenaTensor(self.values[name], shape, "bfloat16")
        return ArenaTensor(int(row(whole, first)), shape, "bfloat16")

    def words(self, name: str, count: int) -> list[int]:
        """Read int32 words of a buffer."""
        found = (ctypes.c_int32 * count)()
        size = ctypes.sizeof(found)
        if self.driver is None:
            ctypes.memmove(found, self.values[name], size)
        else:
            address = ctypes.c_uint64(self.values[name])
            self.driver.cuMemcpyDtoH_v2(found, address, ctypes.c_size_t(size))
        return list(found)

    def cache(self, sequence: int | None, table_pages: int | None = None) -> QsaCache:
        """Return the cache with one sequence's block table, or every one's."""
        values = self.values
        page = (values["page_count"], values["page_tokens"], KV_HEADS, ATTENTION_DIM)
        pages = [self.tensor(name, page) for name in ("k_pages", "v_pages")]
        width = values["table_pages"]
        address = values["block_table"] + (sequence or 0) * width * 4
        shape = (len(self.sequences), width) if sequence is None else (table_pages or width,)
        return QsaCache(pages[0], pages[1], ArenaTensor(address, shape, "int32"))

    def run(self) -> None:
        script = self.words("script", self.values["operations"] * WORDS)
        for number in range(self.values["operations"]):
            operation, sequence, *rest = script[number * WORDS : (number + 1) * WORDS]
            code = OK
            try:
                self._do(operation, sequence, *rest)
            except errors.QsaLaunchError as failure:
                code = LAUNCH + failure.status
            except (errors.QsaEngineError, MemoryError) as failure:
                code = next(code for kind, code in _CODES if isinstance(failure, kind))
            held = self.sequences[sequence].tokens
            target = ArenaTensor(self.values["codes"] + number * 12, (3,), "int32")
            self.memory.write(target, (code, held, len(self.memory.freed)))
        self._keep_keys()

    def _do(self, operation: int, number: int, a: int, b: int, c: int, d: int) -> None:
        sequence = self.sequences[number]
        if operation == INGEST:  # start, rows, first fused row
            sequence.ingest(self.tensor("fused_qk", (b, FUSED), c), a)
        elif operation == DECODE:  # position, fused row, out
            self._keep_ids(sequence.decode(self.tensor("fused_qk", (1, FUSED), b), a), c)
        elif operation == PREFILL:  # start, rows, first fused row, out
            self._prefill(number, a, b, c, d)
        elif operation == REWIND:  # position
            sequence.rewind(a)
        elif operation == SNAPSHOT:  # name
            self.snapshots[a] = sequence.snapshot()
        elif operation == RESTORE:  # name
            sequence.restore(self.snapshots[a])
        elif operation == RELEASE:
            sequence.release()
        elif operation == BATCH:  # row of the tables of positions and fused rows, out
            self._batch(a, b)
        elif operation == REPLAY:  # as BATCH
            self._batch(a, b, replayed=True)
        else:  # misuse
            self._misuse(a, number)

    def _prefill(self, number: int, start: int, count: int, fused: int, out: int) -> None:
        rows = (count, QUERY_HEADS, ATTENTION_DIM)
        q = self.tensor("q", rows, fused)
        context = self.tensor("context_out", rows, out)
        sequence = self.sequences[number]
        for slab in sequence.prefill_select(self.tensor("fused_qk", (count, FUSED), fused), start):
            self._keep_ids(slab, out + slab.first - start)
            self.indexer.prefill_attention(slab, q, self.cache(number), context)

    def _batch(self, step: int, out: int, replayed: bool = False) -> None:
        if self.batch is None:
            self.batch = QsaDecodeBatch(self.indexer, self.sequences, self.cache(None))
        batch, slots = self.batch, len(self.sequences)
        tables = self.words("batches", (step + 1) * 2 * slots)[step * 2 * slots :]
        heads = (1, QUERY_HEADS, ATTENTION_DIM)
        for slot, fused in enumerate(tables[slots:]):
            for name, shape in (("fused_qk", (1, FUSED)), ("q", heads)):
                target = ArenaTensor(int(row(getattr(batch, name), slot)), shape, "bfloat16")
                source = self.tensor(name, shape, fused)
                self.memory.copy(target, source, FUSED if name == "fused_qk" else 16 * 256)
        if replayed and self.captured is None:
            self.captured = QsaCapturedDecode(batch, self._capture)
        (self.captured if replayed and self.captured else batch).step(tables[:slots])
        self._keep("ids_out", batch.ids, out, slots)
        self._keep("counts_out", batch.counts, out, slots)
        self._keep("context_out", batch.context, out, slots)

    def _capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture launches in a CUDA graph; without one, put them down with the scalars they have."""
        driver = self.driver
        if driver is None:
            taken: list[Launch] = []
            self.kernels.taken = taken
            try:
                launch()
            finally:
                self.kernels.taken = None

            def repeat() -> None:
                for entry, given in taken:
                    self.kernels.launch(entry, *given)

            return repeat

        def record(stream: int) -> int:
            self.stream = stream
            try:
                launch()
            finally:
                self.stream = None
            return OK

        driver.cuCtxSynchronize()
        graph = self.graph = CapturedGraph(record)

        def replay() -> None:
            # Copies go to the default stream, which the graph's does not wait for.
            driver.cuCtxSynchronize()
            # A device's fault is told by the child that owns the context, as an eager step's is.
            with suppress(GraphError):
                graph.replay()
                graph.wait()

        return replay

    def _keep_ids(self, slab: QsaSlab, out: int) -> None:
        self._keep("ids_out", slab.ids, out, slab.count)
        self._keep("counts_out", slab.counts, out, slab.count)

    def _keep(self, name: str, source: Tensor, out: int, rows: int) -> None:
        """Copy the first rows of a tensor to rows of an output, from row `out` on."""
        elements = 1
        for extent in tuple(source.shape)[1:]:
            elements *= int(extent)
        whole = ArenaTensor(self.values[name], tuple(source.shape), str(source.dtype))
        target = ArenaTensor(int(row(whole, out)), whole.shape, whole.dtype)
        self.memory.copy(target, source, rows * elements)

    def _keep_keys(self) -> None:
        blocks = max(self.indexer.geometry.block_capacity, 1)
        for number, sequence in enumerate(self.sequences):
            self._keep("keys_out", sequence.block_keys, number * blocks, blocks)

    def _misuse(self, kind: int, number: int) -> None:
        sequence, start = self.sequences[number], self.sequences[number].tokens
        address = self.values["fused_qk"]
        if kind == ROWS_OF_F32:
            sequence.ingest(ArenaTensor(address, (1, FUSED), "float32"), start)
        elif kind == ROWS_ELSEWHERE:
            sequence.ingest(ArenaTensor(address, (1, FUSED), "bfloat16", "elsewhere"), start)
        elif kind == NARROW_ROWS:
            sequence.ingest(ArenaTensor(address, (1, FUSED - 1), "bfloat16"), start)
        elif kind == NO_ROWS:
            sequence.ingest(ArenaTensor(address, (0, FUSED), "bfloat16"), 0)
        elif kind == SHORT_TABLES:
            self._indexer(self.values["capacity"] + 1)
        elif kind == FRACTIONAL_POSITION:
            sequence.ingest(self.tensor("fused_qk", (1, FUSED)), cast(int, start + 0.5))
        elif kind == UNALIGNED_ROWS:
            sequence.ingest(ArenaTensor(address + 2, (1, FUSED), "bfloat16"), start)
        elif kind == LAUNCH_FAILS:
            self.kernels.failing = self._asked_scorer()
            sequence.decode(self.tensor("fused_qk", (1, FUSED)), start)
        elif kind == FREE_FAILS:
            self.memory.failing = True
            sequence.release()
        elif kind in (PREFILL_FAILS, SLAB_OF_REPLACED, SLAB_OF_RELEASED):
            self._misuse_prefill(kind, number)
        else:
            self._misuse_slab(kind, number)

    def _asked_scorer(self) -> str:
        """Return the entry that the script asks for: the runtime's own word would hide another."""
        return "qsa_score_scalar" if self.values["scalar_scores"] else "qsa_score"

    def _misuse_prefill(self, kind: int, number: int) -> None:
        sequence = self.sequences[number]
        start = sequence.tokens
        slabs = sequence.prefill_select(self.tensor("fused_qk", (1, FUSED)), start)
        if kind == PREFILL_FAILS:
            self.kernels.failing = self._asked_scorer()
        elif kind == SLAB_OF_REPLACED:
            sequence.rewind(start)
        else:
            sequence.release()
        next(slabs)

    def _misuse_slab(self, kind: int, number: int) -> None:
        sequence = self.sequences[number]
        position, rows = sequence.tokens, (1, QUERY_HEADS, ATTENTION_DIM)
        slab = sequence.decode(self.tensor("fused_qk", (1, FUSED)), position)
        q = context = self.tensor("q", rows)
        cache = self.cache(number)
        if kind == SHORT_BLOCK_TABLE:
            cache = self.cache(number, position // self.values["page_tokens"])
        elif kind == SHORT_CONTEXT:
            context = self.tensor("q", (0, *rows[1:]))
        else:
            sequence.decode(self.tensor("fused_qk", (1, FUSED)), position + 1)
        self.indexer.prefill_attention(slab, q, cache, context)
