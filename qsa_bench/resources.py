"""Where the files are that ship with the package, and where what it builds is kept.

A wheel carries kernels/ and mutations/ in qsa_bench/_data; a checkout (an editable install) has
them in the repository's root, where a person edits them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from qsa_bench.errors import EnvironmentMissingError

PACKAGE = Path(__file__).resolve().parent
_SHIPPED = PACKAGE / "_data"


def checkout() -> Path | None:
    """Return the repository's root when the package runs from a checkout, else None."""
    root = PACKAGE.parent
    return root if (root / "kernels").is_dir() and (root / "pyproject.toml").is_file() else None


def archived_commit() -> str:
    """Return the commit that `git archive` wrote into its tree, "" in any other."""
    try:
        text = (PACKAGE / "commit.txt").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if re.fullmatch(r"[0-9a-f]{40}", text) else ""


def tree_root() -> Path:
    """Return the folder that holds kernels/ and mutations/.

    EnvironmentMissingError when there is none: the package was copied without its data.
    """
    root = checkout()
    if root is not None:
        return root
    if (_SHIPPED / "kernels").is_dir():
        return _SHIPPED
    raise EnvironmentMissingError(
        f"looking for the kernels: neither {PACKAGE.parent / 'kernels'} nor "
        f"{_SHIPPED / 'kernels'} exists; install the package again (pip install --force-reinstall)"
    )


def cache_root() -> Path:
    """Return the folder for builds; it need not exist. XDG_CACHE_HOME counts when absolute.

    EnvironmentMissingError when there is neither that nor a home folder.
    """
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(configured):
        return Path(configured) / "qsa-bench"
    try:
        return Path.home() / ".cache" / "qsa-bench"
    except RuntimeError:
        raise EnvironmentMissingError(
            "looking for the build cache: this user has no home folder; "
            "set XDG_CACHE_HOME to a writable folder"
        ) from None
