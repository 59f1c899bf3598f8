"""Values that are made once, by whoever asks first; who asks meanwhile waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Once(Generic[K, V]):
    """Values by key; safe from several threads."""

    def __init__(self) -> None:
        self._made: dict[K, Future[V]] = {}
        self._lock = threading.Lock()

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return what `make` gave for this key when it was first asked for, or raise what it raised."""
        with self._lock:
            known = self._made.get(key)
            mine: Future[V] = Future()
            if known is None:
                self._made[key] = mine
        if known is not None:
            return known.result()
        try:
            mine.set_result(make())
        except BaseException as error:
            mine.set_exception(error)
            raise
        return mine.result()
