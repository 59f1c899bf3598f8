"""Fixtures of the host emulation's tests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.host.harness import Builder, Library


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """``build(file, mode)``: a kernel file of tests/host/kernels as a loadable library."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER") is not None:
        base = base.parent  # the workers share their objects
    cache = base / "host-objects"
    cache.mkdir(exist_ok=True)
    return Builder(cache)


@pytest.fixture(scope="session")
def plain(build: Builder) -> Callable[[str], Library]:
    """``plain(file)``: the file in the plain mode."""
    return lambda file: build(file, "plain")


@pytest.fixture(scope="session")
def checked(build: Builder) -> Callable[[str], Library]:
    """``checked(file)``: the file in the checked mode."""
    return lambda file: build(file, "checked")
