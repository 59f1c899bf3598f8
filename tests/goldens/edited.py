"""Copies of the committed golden with one thing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qsa_bench import goldens, tensor_file
from qsa_bench.goldens import qsa


@dataclass
class Draft:
    """A golden's contents, open to change."""

    tensors: dict[str, Any]
    dtypes: dict[str, str]
    metadata: dict[str, str]

    def set_config(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the config and name it as a dumper would."""
        config = json.loads(self.metadata["config"])
        change(config)
        self.metadata["config"] = qsa.config_text(config)
        self.metadata["config_sha256"] = qsa.config_sha256(self.metadata["config"])

    def move_block(self, case: int, row: int, kept: int, dropped: int) -> None:
        """Select block `dropped` in the place of block `kept`."""
        mask = self.tensors[f"case{case}.mask"][row]
        mask[4 * kept : 4 * kept + 4] = 0
        mask[4 * dropped : 4 * dropped + 4] = 1


def draft(kind: str = "qsa") -> Draft:
    file = tensor_file.read(goldens.committed(kind))
    tensors = {name: np.array(tensor) for name, tensor in file.tensors.items()}
    return Draft(tensors, dict(file.dtypes), dict(file.metadata))


def edited(folder: Path, change: Callable[[Draft], object], kind: str = "qsa") -> Path:
    """Write the committed golden of `kind` with `change` made to it into `folder`."""
    contents = draft(kind)
    change(contents)
    path = folder / "edited.safetensors"
    tensor_file.write(path, contents.tensors, contents.dtypes, contents.metadata)
    return path
