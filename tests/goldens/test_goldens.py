from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qsa_bench import goldens
from qsa_bench.errors import EnvironmentMissingError, GoldenError, UsageError
from qsa_bench.exit_codes import ExitCode
from tests.goldens.edited import edited


def refusal(path: Path, kind: str = "qsa") -> str:
    with pytest.raises(GoldenError) as caught:
        goldens.load(path, kind)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    assert caught.value.exit_code is ExitCode.USAGE
    return message


def test_qsa_is_a_kind() -> None:
    assert "qsa" in goldens.kinds()


@pytest.mark.parametrize("kind", goldens.kinds())
def test_every_committed_golden_verifies_and_is_small_enough_to_commit(kind: str) -> None:
    path = goldens.committed(kind)
    golden = goldens.load(path, kind)
    assert len(goldens.verify(golden)) > 1
    assert path.stat().st_size < 8_000_000


def test_a_golden_is_named_by_the_sha256_of_its_file() -> None:
    path = goldens.committed("qsa")
    golden = goldens.load(path, "qsa")
    assert golden.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (golden.kind, golden.path) == ("qsa", path)


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    for ask in (
        lambda: goldens.committed("qsb"),
        lambda: goldens.load(goldens.committed("qsa"), "qsb"),
        lambda: goldens.dump("qsb", Path("out"), 0),
    ):
        with pytest.raises(UsageError, match=r"no golden of kind 'qsb'; the kinds are .*\bqsa\b"):
            ask()


def test_a_module_without_a_dumper_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="no dumper for goldens of kind 'qsa'"):
        goldens.dump("qsa", Path("out"), 0)


def test_a_missing_golden_is_one_clear_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").endswith("cannot be read: No such file or directory")


def test_a_truncated_golden_is_one_clear_line(tmp_path: Path) -> None:
    whole = goldens.committed("qsa").read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(whole[: len(whole) // 2])
    assert f"truncated: {len(whole) // 2} bytes" in refusal(path)


def test_a_file_of_another_format_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_text("not a tensor in sight, only prose")
    assert "not a safetensors file" in refusal(path)


def test_a_safetensors_file_that_is_no_golden_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda draft: draft.metadata.clear())
    assert "not a qsa golden: its metadata has no format_version" in refusal(path)


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_another_format_version_is_refused(tmp_path: Path, version: str) -> None:
    path = edited(tmp_path, lambda draft: draft.metadata.update(format_version=version))
    assert f"format_version {version!r}, this qsa-bench reads '1'" in refusal(path)


@pytest.mark.parametrize("key", goldens.PROVENANCE)
def test_a_golden_that_does_not_say_where_it_is_from_is_refused(tmp_path: Path, key: str) -> None:
    path = edited(tmp_path, lambda draft: draft.metadata.pop(key))
    assert f"metadata lacks {key}" in refusal(path)


def test_a_committed_golden_that_is_missing_says_the_installation_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    with pytest.raises(GoldenError, match="the qsa golden is missing from this installation"):
        goldens.committed("qsa")


def test_dumping_without_the_reference_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib import metadata

    def version(package: str) -> str:
        if package == "transformers":
            raise metadata.PackageNotFoundError(package)
        return "2.13.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(EnvironmentMissingError) as caught:
        goldens.dump("qsa", tmp_path / "out", 0)
    assert "needs transformers 5.16.1, which is not installed" in str(caught.value)
    assert "pip install 'qsa-bench[reference]'" in str(caught.value)
    assert not (tmp_path / "out").exists()
