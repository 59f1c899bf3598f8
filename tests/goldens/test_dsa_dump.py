"""What of the DSA dumper can be seen without the reference: shapes, refusals and the watching."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from qsa_bench import goldens, tensor_file
from qsa_bench.errors import EnvironmentMissingError, GoldenError, UsageError
from qsa_bench.goldens import dsa, dsa_dump, reference
from tests.goldens.edited import Draft, draft


def test_an_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    out = tmp_path / "golden"
    out.write_text("precious")
    with pytest.raises(UsageError, match="exists already; give --force to overwrite it"):
        dsa_dump.dump(out, 0)
    assert out.read_text() == "precious"


def test_a_missing_folder_and_a_negative_seed_are_said_before_the_reference_runs(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="its folder does not exist"):
        dsa_dump.dump(tmp_path / "no" / "golden", 0)
    with pytest.raises(UsageError, match="seed -1 is negative"):
        dsa_dump.dump(tmp_path / "golden", -1)


@pytest.mark.parametrize("which", ["weights", "hidden"])
def test_files_of_inputs_are_refused_not_ignored(tmp_path: Path, which: str) -> None:
    given = {which: tmp_path / "some"}
    with pytest.raises(UsageError, match="dumped from a seed alone"):
        dsa_dump.dump(tmp_path / "golden", 0, **given)


@pytest.mark.parametrize("found", [None, "5.15.0"])
def test_another_release_of_the_reference_is_named_with_the_one_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    def version(package: str) -> str:
        if package == "transformers" and found is None:
            raise metadata.PackageNotFoundError(package)
        return str(found) if package == "transformers" else "2.13.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(EnvironmentMissingError, match=r"transformers 5\.16\.1") as caught:
        dsa_dump.dump(tmp_path / "golden", 0)
    assert (found or "not installed") in str(caught.value)
    assert not (tmp_path / "golden").exists()


def test_the_committed_golden_has_the_dumpers_cases() -> None:
    cases = dsa.cases(goldens.load(goldens.committed("dsa"), "dsa"))
    assert len(cases) == len(dsa_dump.CASES)
    for case, shape in zip(cases, dsa_dump.CASES, strict=True):
        assert (case.kpool, case.topk, case.tokens) == (shape.kpool, shape.topk, shape.tokens)
        assert np.array_equal(case.valid, shape.valid)
        assert case.q_pos.tolist() == list(range(shape.first_row, shape.tokens))


@pytest.fixture
def reference_stand_in(monkeypatch: pytest.MonkeyPatch) -> Draft:
    contents = draft("dsa")
    monkeypatch.setattr(reference, "require", lambda kind: None)
    monkeypatch.setattr(
        dsa_dump,
        "_compute",
        lambda seed: tensor_file.TensorFile(contents.tensors, contents.dtypes, contents.metadata),
    )
    return contents


def test_a_dump_is_written_whole_verified_and_not_at_all_where_it_does_not_verify(
    tmp_path: Path, reference_stand_in: Draft
) -> None:
    golden = dsa_dump.dump(tmp_path / "first", 0)
    assert golden.digest == tensor_file.sha256(goldens.committed("dsa"))
    reference_stand_in.tensors["case0.q_pos"][0] = 9
    with pytest.raises(GoldenError, match="case 0: q_pos is 9"):
        dsa_dump.dump(tmp_path / "second", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


class Watched(torch.nn.Module):
    """As much of an indexer as the watching looks at."""

    def __init__(self, topks: int = 1) -> None:
        super().__init__()
        self.k_norm, self.wq_b = torch.nn.Identity(), torch.nn.Identity()
        self.weights_proj = torch.nn.Identity()
        self.index_kpool_compress_gate = torch.nn.Parameter(torch.eye(4))
        self.topks = topks

    def forward(
        self, hidden: torch.Tensor, q_resid: torch.Tensor, _valid: torch.Tensor, _cache: None
    ) -> torch.Tensor:
        keys = self.k_norm(hidden)
        torch.nn.functional.linear(hidden, self.index_kpool_compress_gate)
        scores = self.wq_b(q_resid) + self.weights_proj(keys)
        for _ in range(self.topks):
            scores.topk(1, dim=-1)
        return scores.masked_fill(scores > 0, 7)

    def get_pooled_states(self, packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return packed, packed + 1, packed + 2


def test_the_watching_sees_everything_once_and_leaves_the_indexer_as_it_was() -> None:
    indexer = Watched()
    hidden, resid = torch.arange(8.0).reshape(1, 2, 4), torch.ones(1, 2, 4)
    valid = torch.tensor([[True, False]])
    seen = dsa_dump.capture(indexer, hidden, resid, valid)
    assert torch.equal(seen.k_normed, hidden)
    assert torch.equal(seen.gate, hidden)
    assert torch.equal(seen.scores, hidden + resid)
    assert torch.equal(seen.pool_keys[..., :8], torch.cat([hidden, hidden], dim=-1))
    assert torch.equal(seen.pool_keys[..., 8], valid.float())
    assert (seen.token_ids == 7).all()
    assert not any(module._forward_hooks for module in indexer.modules())


def test_a_reference_that_selects_twice_is_no_reference() -> None:
    with pytest.raises(GoldenError, match="the reference gave scores 2 times, not once"):
        dsa_dump.capture(
            Watched(topks=2), torch.ones(1, 2, 4), torch.ones(1, 2, 4), torch.ones(1, 2).bool()
        )
