"""A value is made once, whoever asks for it, and an error is everyone's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qsa_bench.once import Once


def test_those_who_ask_at_once_get_one_value() -> None:
    once: Once[str, object] = Once()
    made: list[str] = []
    asked, ready = threading.Barrier(4), threading.Event()

    def make() -> object:
        made.append("")
        ready.wait(5)
        return object()

    def ask() -> object:
        asked.wait(5)
        return once.of("key", make)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(ask) for _ in range(4)]
        ready.set()
        values = {id(future.result()) for future in futures}
    assert (len(made), len(values)) == (1, 1)
    assert id(once.of("another", object)) not in values


def test_what_it_raised_is_raised_again_and_not_tried_again() -> None:
    once: Once[int, int] = Once()
    tried: list[int] = []

    def fail() -> int:
        tried.append(1)
        raise OSError("no room")

    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            once.of(1, fail)
    assert tried == [1]
