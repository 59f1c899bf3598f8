"""Counts of a DSA selection: decided once, checked before a pointer is touched."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from qsa_bench import resources
from qsa_bench.engine import dsa_geometry
from qsa_bench.engine.dsa_geometry import DsaGeometryError, DsaSelectGeometry


def layout(**more: Any) -> DsaSelectGeometry:
    return DsaSelectGeometry(**{"context": 4096, "tokens": 100, "query_rows": 1, **more})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"query_rows": 0}, "0 query rows, expected 1 at least"),
        ({"tokens": 0}, "0 tokens, expected 1 at least"),
        ({"tokens": -1}, "-1 tokens, expected 1 at least"),
        ({"tokens": 3.5}, "tokens is 3.5, expected a whole number"),
        ({"tokens": None}, "tokens is None, expected a whole number"),
        ({"context": 4096.0}, "context is 4096.0, expected a whole number"),
        ({"kpool": "4"}, "kpool is '4', expected a whole number"),
        ({"scratch_bytes": 1e9}, "scratch_bytes is 1000000000.0, expected a whole number"),
        ({"context": -1}, "100 tokens outgrew the scratch, .* a context of -1"),
        ({"most_rows": 0}, "1 query rows, the scratch is laid out for 0"),
        ({"tokens": 4097}, "4097 tokens outgrew the scratch, .* a context of 4096"),
        ({"query_rows": 3, "most_rows": 2}, "3 query rows, the scratch is laid out for 2"),
        ({"tokens": 2, "query_rows": 3, "most_rows": 3}, "3 query rows of 2 tokens"),
        ({"topk": 2052}, "topk 2052 keeps 513 pools of 4, the kernel serves 512: .* 2048 at most"),
        ({"topk": 8208, "kpool": 16}, "keeps 513 pools of 16, .* 8192 at most"),
        ({"topk": 30}, "topk is 30, expected a positive multiple of kpool 4"),
        ({"topk": 0}, "topk is 0"),
        ({"kpool": 8}, "kpool is 8, the kernels serve 4 or 16"),
        ({"kpool": 0}, "kpool is 0"),
        ({"batch": 0}, "0 sequences, expected 1 to 65535"),
        ({"batch": 65536}, "65536 sequences"),
        ({"context": 2**31 - 4}, "a context of 2147483644 tokens"),
        ({"replayed": True, "batch": 2}, "2 sequences of 1 query rows in a graph"),
        (
            {"replayed": True, "query_rows": 5, "most_rows": 5},
            "1 sequences of 5 query rows in a graph",
        ),
        ({"batch": 65535, "most_rows": 40000}, "65535 sequences of 40000 rows are more"),
        ({"shared_limit": 32 * 1024}, "dsa_index_scores needs 33792 bytes .* a block 32768"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused_with_the_numbers(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(DsaGeometryError, match=said) as caught:
        layout(**change)
    assert "\n" not in str(caught.value)


def test_a_context_that_outgrew_its_scratch_is_refused_with_what_it_needs() -> None:
    needed = layout().needed_bytes
    assert layout(scratch_bytes=needed).needed_bytes == needed
    with pytest.raises(
        DsaGeometryError, match=f"{needed} bytes of scratch .* there are {needed - 1}"
    ):
        layout(scratch_bytes=needed - 1)
    with pytest.raises(DsaGeometryError, match=r"the largest part is pool_keys with 524288"):
        layout(context=8192, scratch_bytes=needed)


def test_fewer_tokens_than_a_pool_are_the_tail_alone() -> None:
    short = layout(tokens=3)
    assert (short.whole_pools, short.pools, short.select_k, short.select_tile) == (0, 1, 0, 0)
    assert short.output_width == 2051
    assert layout(context=3, tokens=3).score_cols == 4


def test_counts_follow_the_live_tokens_and_capacities_the_context() -> None:
    one, other = layout(tokens=2051), layout(tokens=2052)
    assert (one.whole_pools, one.select_k, one.select_tile) == (512, 512, 512)
    assert (other.whole_pools, other.select_k, other.select_tile) == (513, 512, 516)
    assert one.regions == other.regions == layout().at(4096).regions
    assert layout(select_tail=False).output_width == 2048
    assert layout(kpool=16, topk=64).output_width == 79


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("context", [1, 3, 4, 5, 2070, 1 << 20])
def test_regions_are_aligned_and_lie_one_behind_the_other(context: int, padded: bool) -> None:
    given = layout(context=context, tokens=1, batch=3, most_rows=7, padded=padded)
    end = 0
    for region in given.regions:
        assert region.offset % 256 == 0
        assert region.offset >= end
        end = region.offset + region.size
    assert end <= given.needed_bytes < end + 256
    pools = context // 4
    sizes = {region.name: region.size for region in given.regions}
    assert sizes["pool_keys"] == 3 * pools * 256
    assert sizes["slots"] == (3 * (pools + 1) * 8 if padded else 0)
    assert sizes["scores"] == 21 * given.score_cols * 4
    assert given.score_cols >= max(1, pools)


def test_the_pool_axis_is_bounded_by_memory_not_by_shared_memory() -> None:
    million = layout(context=1 << 20, tokens=1 << 20)
    assert million.pool_capacity == 262144
    assert million.shared_limit == layout().shared_limit == 48 * 1024


def test_another_step_keeps_the_layout_and_is_checked_anew() -> None:
    given = layout(most_rows=5, scratch_bytes=layout(most_rows=5).needed_bytes)
    assert given.at(4096, 5).offset("scores") == given.offset("scores")
    with pytest.raises(DsaGeometryError, match="4097 tokens outgrew"):
        given.at(4097)
    with pytest.raises(DsaGeometryError, match="6 query rows"):
        given.at(4096, 6)


def test_an_unknown_region_is_no_region() -> None:
    with pytest.raises(KeyError):
        layout().offset("logits")


@pytest.mark.parametrize("kernel", dsa_geometry.SHARED_BYTES)
def test_shared_memory_is_what_the_source_asserts(kernel: str) -> None:
    source = resources.tree_root() / "kernels/dsa" / f"{kernel.removeprefix('dsa_')}.cu"
    found = re.search(r"kMostSharedBytes = (\d+)(?: \* (\d+))?;", source.read_text())
    assert found is not None
    assert dsa_geometry.SHARED_BYTES[kernel] == int(found[1]) * int(found[2] or 1)


def test_what_the_kernel_keeps_at_most_is_what_the_engine_refuses_past() -> None:
    source = (resources.tree_root() / "kernels/common/select_ascending.cuh").read_text()
    found = re.search(r"kMostKept = (\d+);", source)
    assert found is not None
    assert int(found[1]) == dsa_geometry.MOST_KEPT


def test_the_engine_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, qsa_bench.engine.dsa_select, qsa_bench.engine.dsa_replay\n"
        "print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
