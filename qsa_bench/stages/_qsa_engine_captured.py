"""Scripts that decode the same tokens eagerly and by a step that was captured once.

On a CUDA device the step is a CUDA graph; on the host a list of launches whose addresses and scalars
stay what they were. Either way nothing but what the device holds can change from step to step.
"""

from __future__ import annotations

from qsa_bench.engine import qsa_script as script
from qsa_bench.stages._qsa_engine import EMPTY, Batch, Operation, Script, random_inputs

CAPACITY = 64
BUDGET = 16  # the first selective position is 19


def captured() -> Script:
    """Three slots eagerly, three captured, of the same tokens: from nothing, late, and speculating."""
    steps, own = 26, 3
    slots = 2 * own
    inputs, q, cache = random_inputs(60, slots, CAPACITY, "captured", shared=True)
    operations = [Operation(script.INGEST, slot, (0, 17, 30)) for slot in (2, 2 + own)]
    batches: list[Batch] = []
    third = 17
    for step in range(steps):
        late = step - 9 if step >= 9 else EMPTY
        if step % 7 == 6:
            third -= 3
            operations += [Operation(script.REWIND, slot, (third,)) for slot in (2, 2 + own)]
        positions, fused = (step, late, third), (step, step, 30 + step)
        for replayed in (False, True):
            kind = script.REPLAY if replayed else script.BATCH
            operations.append(Operation(kind, 0, (len(batches), len(batches) * slots)))
            empty, zeros = (EMPTY,) * own, (0,) * own
            batches.append(
                Batch((*empty, *positions), (*zeros, *fused))
                if replayed
                else Batch((*positions, *empty), (*fused, *zeros))
            )
        third += 1
    # Refused before anything is replayed.
    operations.append(Operation(script.REPLAY, 0, (0, 0), script.ORDER))
    equal = tuple(
        (2 * step * slots + slot, (2 * step + 1) * slots + own + slot)
        for step in range(steps)
        for slot in range(own)
    )
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        slots,
        CAPACITY,
        BUDGET,
        2 * steps * slots,
        tuple(batches),
        slab_rows=8,
        equal=equal,
        equal_sequences=(0, own),
    )


def captured_bound() -> Script:
    """The real budget: an eager slot and a captured one on both sides of the bound and of blocks."""
    first, last = 2046, 2054
    inputs, q, cache = random_inputs(last, 2, last, "captured", shared=True, page=64)
    operations = [Operation(script.INGEST, slot, (0, first, 0)) for slot in range(2)]
    batches: list[Batch] = []
    for position in range(first, last):
        for kind, slots in ((script.BATCH, (position, EMPTY)), (script.REPLAY, (EMPTY, position))):
            operations.append(Operation(kind, 0, (len(batches), 2 * len(batches))))
            batches.append(Batch(slots, (position, position)))
    equal = tuple((4 * step, 4 * step + 3) for step in range(last - first))
    return Script(
        inputs,
        q,
        cache,
        tuple(operations),
        2,
        last,
        2048,
        2 * len(batches),
        tuple(batches),
        slab_rows=1,
        equal=equal,
        equal_sequences=(0, 1),
    )
