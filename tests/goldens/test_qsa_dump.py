"""What of the dumper can be seen without the reference: its inputs, refusals and the watching."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qsa_bench import goldens, tensor_file
from qsa_bench.errors import EnvironmentMissingError, GoldenError, UsageError
from qsa_bench.goldens import qsa, qsa_dump, qsa_inputs, reference
from tests.goldens.edited import draft


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)


def file(folder: Path, tensors: Mapping[str, Any], dtype: str = "f32") -> Path:
    path = folder / "input.safetensors"
    tensor_file.write(path, tensors, dict.fromkeys(tensors, dtype), {})
    return path


def layer(prefix: str = "") -> dict[str, Any]:
    return {
        prefix + name: np.full(shape, 0.5, np.float32) for name, shape in qsa_inputs.WEIGHTS.items()
    }


# Refusals before anything is computed


def test_an_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    out = tmp_path / "golden"
    out.write_text("precious")
    with pytest.raises(UsageError, match="exists already; give --force to overwrite it"):
        qsa_dump.dump(out, 0)
    assert out.read_text() == "precious"


@pytest.mark.usefixtures("no_reference")
def test_force_goes_past_an_existing_file_and_a_failure_leaves_it(tmp_path: Path) -> None:
    out = tmp_path / "golden"
    out.write_text("precious")
    with pytest.raises(EnvironmentMissingError):
        qsa_dump.dump(out, 0, force=True)
    assert out.read_text() == "precious"


def test_a_missing_folder_is_said_before_the_reference_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its folder does not exist"):
        qsa_dump.dump(tmp_path / "none" / "golden", 0)


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="seed -1 is negative"):
        qsa_dump.dump(tmp_path / "golden", -1)


def test_another_release_of_the_reference_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda package: "5.15.0")
    with pytest.raises(EnvironmentMissingError) as caught:
        qsa_dump.dump(tmp_path / "golden", 0)
    assert "needs transformers 5.16.1, found 5.15.0" in str(caught.value)
    assert "pip install 'qsa-bench[reference]'" in str(caught.value)


@pytest.mark.usefixtures("no_reference")
def test_a_missing_torch_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match="needs torch, which is not installed"):
        qsa_dump.dump(tmp_path / "golden", 0)


# Inputs


def test_the_same_seed_draws_the_same_inputs_and_another_seed_others() -> None:
    first, again = qsa_inputs.seeded_weights(5), qsa_inputs.seeded_weights(5)
    other = qsa_inputs.seeded_weights(6)
    for name in qsa_inputs.WEIGHTS:
        assert np.array_equal(first[name].array, again[name].array)
        assert not np.array_equal(first[name].array, other[name].array)
    states = qsa_inputs.seeded_hidden(5)
    assert [state.array.shape for state in states] == [(s.tokens, 2560) for s in qsa.CASES]
    assert not np.array_equal(states[0].array[:5], states[1].array[:5])


def test_random_keys_and_queries_have_unit_variance() -> None:
    projection = qsa_inputs.seeded_weights(0)["index_qk_proj.weight"].array
    fused = qsa_inputs.seeded_hidden(0)[2].array @ projection.T
    assert fused.std() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("prefix", ["", "model.language_model.layers.3.self_attn.indexer."])
def test_weights_are_read_under_the_checkpoints_names(tmp_path: Path, prefix: str) -> None:
    path = file(tmp_path, layer(prefix) | {"model.norm.weight": np.ones(3, np.float32)})
    found = qsa_inputs.read_weights(path)
    assert found.keys() == qsa_inputs.WEIGHTS.keys()
    assert found["q_layernorm.weight"].origin == f"sha256:{tensor_file.sha256(path)}"


def test_weights_of_two_layers_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, layer("layers.3.indexer.") | layer("layers.7.indexer."))
    with pytest.raises(UsageError, match=r"2 layers have an indexer \(layers\.3\.indexer\."):
        qsa_inputs.read_weights(path)


def test_weights_without_a_norm_are_refused(tmp_path: Path) -> None:
    tensors = layer()
    del tensors["k_layernorm.weight"]
    with pytest.raises(UsageError, match=r"no tensor is named k_layernorm\.weight"):
        qsa_inputs.read_weights(file(tmp_path, tensors))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    tensors = layer() | {"q_layernorm.weight": np.ones(64, np.float32)}
    with pytest.raises(UsageError, match=r"has shape \[64\], expected \[128\]"):
        qsa_inputs.read_weights(file(tmp_path, tensors))


def test_hidden_states_of_one_text_serve_every_case_from_position_0(tmp_path: Path) -> None:
    states = np.arange(2056, dtype=np.float32)[None, :, None] * np.ones((1, 1, 2560), np.float32)
    found = qsa_inputs.read_hidden(file(tmp_path, {"hidden_states": states}))
    assert [state.array[:, 0].tolist() for state in found] == [
        list(range(shape.tokens)) for shape in qsa.CASES
    ]


def test_hidden_states_may_be_given_for_each_case(tmp_path: Path) -> None:
    tensors = {
        f"case{index}.hidden_states": np.full((shape.tokens, 2560), index, np.uint16)
        for index, shape in enumerate(qsa.CASES)
    }
    found = qsa_inputs.read_hidden(file(tmp_path, tensors, "bf16"))
    assert [int(state.array[0, 0]) for state in found] == list(range(7))
    assert {state.dtype for state in found} == {"bf16"}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"hidden_states": np.zeros((2054, 2560), np.float32)}, "has 2054 tokens, case 6 needs 2055"),
        ({"hidden_states": np.zeros((2055, 2048), np.float32)}, r"has shape \[2055, 2048\], expected"),
        ({"case0.hidden_states": np.zeros((4, 2560), np.float32)}, "has 4 tokens, case 0 needs 5"),
        ({"case0.hidden_states": np.zeros((5, 2560), np.float32)}, r"nor case1\.hidden_states"),
        ({"states": np.zeros((2055, 2560), np.float32)}, r"neither a tensor hidden_states nor case0"),
        ({"hidden_states": np.full((2055, 2560), np.nan, np.float32)}, "not finite"),
    ],
)  # fmt: skip
def test_unusable_hidden_states_are_one_clear_line(
    tmp_path: Path, tensors: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        qsa_inputs.read_hidden(file(tmp_path, tensors))


def test_hidden_states_of_integers_are_refused(tmp_path: Path) -> None:
    tensors = {"hidden_states": np.zeros((2055, 2560), np.int32)}
    with pytest.raises(UsageError, match="is i32, expected one of bf16, f16, f32, f64"):
        qsa_inputs.read_hidden(file(tmp_path, tensors, "i32"))


def test_bf16_inputs_reach_torch_bit_by_bit() -> None:
    bits = np.array([0x3F80, 0xC000, 0x0001], np.uint16)
    bits.flags.writeable = False
    tensor = qsa_dump._tensor(qsa_inputs.Input(bits, "bf16", "random"))
    assert tensor.dtype == torch.bfloat16
    assert tensor[:2].tolist() == [1.0, -2.0]
    assert np.array_equal(reference.bits(tensor), bits)


# Watching an indexer


class Indexer(torch.nn.Module):
    """Scores block b of row p as 100 p + b; drops the scores of rows in `blind`."""

    def __init__(self, blind: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.index_qk_proj = torch.nn.Linear(8, 6, bias=False)
        self.blind = blind
        self.causal: torch.Tensor | None = None

    def forward(
        self, hidden: torch.Tensor, tables: Any, mask: torch.Tensor, cache: None
    ) -> torch.Tensor:
        self.index_qk_proj(hidden)
        self.causal = mask
        for position in range(hidden.shape[1]):
            blocks = (position + 1) // 4
            if blocks and position not in self.blind:
                scores = 100.0 * position + torch.arange(blocks)
                scores.topk(1, dim=0)
                scores.zero_()
        return mask


def watch(indexer: Indexer) -> qsa_dump.Capture:
    table = torch.zeros(1, 9, 4)
    return qsa_dump.capture(indexer, torch.ones(1, 9, 8), table, table)


def test_watching_sees_the_projection_every_rows_scores_and_the_mask() -> None:
    indexer = Indexer()
    seen = watch(indexer)
    assert torch.equal(seen.fused_qk, indexer.index_qk_proj(torch.ones(9, 8)))
    assert [row.tolist() for row in seen.scores] == [
        [300.0], [400.0], [500.0], [600.0], [700.0, 701.0], [800.0, 801.0],
    ]  # fmt: skip
    assert torch.equal(seen.mask, torch.ones(9, 9, dtype=torch.bool).tril())
    assert indexer.causal is not None
    assert indexer.causal.shape == (1, 1, 9, 9)


def test_watching_leaves_the_indexer_as_it_was() -> None:
    indexer = Indexer()
    watch(indexer)
    assert not indexer.index_qk_proj._forward_hooks
    with pytest.raises(GoldenError):
        watch(Indexer(blind=(4,)))
    torch.ones(3).topk(1)


def test_a_reference_whose_scores_are_not_seen_is_refused() -> None:
    with pytest.raises(GoldenError, match="did not see one score for each row's block"):
        watch(Indexer(blind=(7,)))


# From inputs to the file, the reference's part taken from the committed golden


@pytest.mark.usefixtures("reference_stand_in")
def test_a_dump_is_written_whole_verified_and_the_same_each_time(tmp_path: Path) -> None:
    first = qsa_dump.dump(tmp_path / "first", 0)
    second = qsa_dump.dump(tmp_path / "second", 0)
    assert first.digest == second.digest == tensor_file.sha256(goldens.committed("qsa"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


@pytest.fixture
def reference_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = draft()
    made = tensor_file.TensorFile(contents.tensors, contents.dtypes, contents.metadata)
    monkeypatch.setattr(reference, "require", lambda kind: None)
    monkeypatch.setattr(qsa_dump, "_compute", lambda layer, states, seed: made)


@pytest.mark.usefixtures("reference_stand_in")
def test_a_dump_that_does_not_verify_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = draft()
    contents.tensors["case0.scores"][4, 0] = np.nan
    bad = tensor_file.TensorFile(contents.tensors, contents.dtypes, contents.metadata)
    monkeypatch.setattr(qsa_dump, "_compute", lambda layer, states, seed: bad)
    with pytest.raises(GoldenError, match="case 0, row 4"):
        qsa_dump.dump(tmp_path / "out", 0)
    assert not list(tmp_path.iterdir())
