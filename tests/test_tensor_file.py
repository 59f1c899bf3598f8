from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from qsa_bench import tensor_file
from qsa_bench.errors import UsageError

TENSORS: dict[str, Any] = {
    "codes": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "flags": np.array([True, False]),
    "ids": np.array([-1, 7], np.int64),
    "marks": np.array([1, 0, 1], np.uint8),
    "nothing": np.empty((0, 4), np.float32),
    "one": np.array(2.5, np.float32),
    "scores": np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32),
}
DTYPES = {
    "codes": "bf16",
    "flags": "bool",
    "ids": "i64",
    "marks": "u8",
    "nothing": "f32",
    "one": "f32",
    "scores": "f32",
}


def written(folder: Path) -> Path:
    path = folder / "file.safetensors"
    tensor_file.write(path, TENSORS, DTYPES, {"made": "here", "a": "b"})
    return path


def raw(folder: Path, header: bytes, data: bytes = b"") -> Path:
    path = folder / "raw.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        tensor_file.read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message


def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    file = tensor_file.read(written(tmp_path))
    assert dict(file.dtypes) == DTYPES
    assert dict(file.metadata) == {"made": "here", "a": "b"}
    assert file.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert file.tensors[name].shape == tensor.shape
        assert file.tensors[name].dtype == tensor.dtype
        assert file.tensors[name].tobytes() == tensor.tobytes()


def test_the_safetensors_package_reads_what_is_written(tmp_path: Path) -> None:
    path = written(tmp_path)
    parsed = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert parsed["codes"]["dtype"] == "BF16"
    assert parsed["codes"]["shape"] == [2, 3]
    assert bytes(parsed["codes"]["data"]) == TENSORS["codes"].tobytes()
    with safetensors.safe_open(path, "np") as opened:
        assert opened.metadata() == {"made": "here", "a": "b"}


def test_what_the_safetensors_package_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    theirs = {name: TENSORS[name] for name in ("ids", "marks", "one", "scores")}
    safetensors.numpy.save_file(theirs, path, {"by": "them"})
    file = tensor_file.read(path)
    assert dict(file.metadata) == {"by": "them"}
    for name, tensor in theirs.items():
        assert file.tensors[name].tobytes() == tensor.tobytes()


def test_equal_contents_are_equal_bytes_whatever_the_order(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    tensor_file.write(first, TENSORS, DTYPES, {"a": "1", "b": "2"})
    backwards = dict(reversed(TENSORS.items()))
    tensor_file.write(second, backwards, DTYPES, {"b": "2", "a": "1"})
    assert first.read_bytes() == second.read_bytes()
    assert tensor_file.sha256(first) == tensor_file.sha256(second)


def test_tensors_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    scores = tensor_file.read(written(tmp_path)).tensors["scores"]
    assert not scores.flags.writeable
    assert not scores.flags.owndata


def test_an_array_that_is_not_contiguous_is_written_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "file"
    columns = np.arange(6, dtype=np.float32).reshape(2, 3).T
    tensor_file.write(path, {"x": columns}, {"x": "f32"}, {})
    assert tensor_file.read(path).tensors["x"].tolist() == columns.tolist()


def test_every_tensor_written_is_aligned(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "a": np.zeros(3, np.uint8),
        "b": np.zeros(1, np.int64),
        "c": np.zeros(1, np.uint16),
    }
    path = tmp_path / "file"
    tensor_file.write(path, odd, {"a": "u8", "b": "i64", "c": "bf16"}, {"odd": "length"})
    for tensor in tensor_file.read(path).tensors.values():
        assert not tensor.flags.owndata
        assert tensor.ctypes.data % tensor.itemsize == 0


def test_a_tensor_that_its_writer_did_not_align_is_copied_to_an_aligned_place(
    tmp_path: Path,
) -> None:
    header = {"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}
    text = json.dumps(header).encode()
    data = b"\7" + np.float32(2.5).tobytes()
    file = tensor_file.read(raw(tmp_path, text + b" " * (-len(text) % 8), data))
    assert file.tensors["b"].tolist() == [2.5]
    assert file.tensors["b"].ctypes.data % 4 == 0


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").endswith("cannot be read: No such file or directory")


def test_a_folder_is_one_clear_line(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith("cannot be read: Is a directory")


def test_a_file_cut_anywhere_is_truncated_in_one_clear_line(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    cut = tmp_path / "cut"
    for size in (0, 7, 8, 100, len(whole) - 1):
        cut.write_bytes(whole[:size])
        assert f"truncated: {size} bytes" in refusal(cut)


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert "its header describes" in refusal(path)


def test_a_file_of_another_format_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "archive.zip"
    path.write_bytes(b"PK\3\4" + bytes(range(200)))
    assert "not a safetensors file" in refusal(path)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{nonsense", "its header is not JSON"),
        (b"\xff\xfe{}", "its header is not JSON"),
        (b"[" * 100_000, "its header is not JSON"),
        (b"[]", "its header is not a JSON object"),
        (b'{"__metadata__": {"a": 1}}', "its metadata is not text by name"),
        (b'{"a": 1, "a": 2}', "its header has 'a' twice"),
        (b'{"a": 1}', "tensor 'a' lacks a dtype, shape or data_offsets"),
        (b'{"a": {"dtype": "U8", "shape": [1]}}', "lacks a dtype, shape or data_offsets"),
    ],
)
def test_a_header_that_is_not_the_formats_is_refused(
    tmp_path: Path, header: bytes, reason: str
) -> None:
    assert reason in refusal(raw(tmp_path, header))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"a": entry("U8", [-4], 0, 4)}, "lacks a dtype, shape or data_offsets"),
        ({"a": entry("U8", [True], 0, 1)}, "lacks a dtype, shape or data_offsets"),
        ({"a": entry("U8", [4], 0.0, 4.0)}, "lacks a dtype, shape or data_offsets"),
        ({"a": entry("F4", [8], 0, 4)}, "dtype 'F4', which qsa-bench does not read"),
        ({"a": entry("F32", [2], 0, 4)}, "has 4 bytes, its shape needs 8"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, "begins at byte 0"),
        ({"a": entry("U8", [2], 2, 4)}, "begins at byte 2, expected 0"),
        ({"a": entry("U8", [8], 0, 8)}, "truncated"),
    ],
)
def test_tensors_that_do_not_tile_the_file_are_refused(
    tmp_path: Path, entries: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(raw(tmp_path, json.dumps(entries).encode(), b"\0" * 4))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        tensor_file.write(path, {"x": TENSORS["one"]}, {"x": "f32"}, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_keeps_what_it_mapped_when_the_file_is_written_anew(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = tensor_file.read(path)
    tensor_file.write(path, {"x": TENSORS["one"]}, {"x": "f32"}, {})
    assert tensor_file.read(path).tensors.keys() == {"x"}
    assert before.tensors["scores"].tobytes() == TENSORS["scores"].tobytes()


def test_a_write_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_into_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        written(tmp_path / "none")


def test_an_array_that_is_not_stored_as_its_dtype_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ValueError, match=re.escape("tensor 'x' is float32, bf16 is stored as")):
        tensor_file.write(path, {"x": TENSORS["one"]}, {"x": "bf16"}, {})
    with pytest.raises(ValueError, match="dtypes without tensor"):
        tensor_file.write(path, {}, {"x": "f32"}, {})
    assert not path.exists()


def test_reading_imports_neither_torch_nor_the_safetensors_package(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from qsa_bench import tensor_file; "
        "tensor_file.read(pathlib.Path(sys.argv[1])); "
        "print(sorted({'torch', 'safetensors'} & sys.modules.keys()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, written(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert answer.stdout.strip() == "[]"
