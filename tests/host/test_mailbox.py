"""Mailboxes between the CTAs of a cluster: what arrives, and what happens when their rules are broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.host.harness import FIFO, INPUT, LIFO, SEEDED, Buffer, Library, Result, marked

FILE = "mailbox.cu"
TRAPPED = 100
VALUES = np.arange(500, 628, dtype=np.int32)


@pytest.fixture(name="library")
def _library(checked: Callable[[str], Library]) -> Library:
    return checked(FILE)


def mail(library: Library, value: int, **order: int) -> Result:
    given = [Buffer("in", VALUES, INPUT), Buffer("out", np.zeros(128, np.int32), 0)]
    return library.run("mail", given, [value], **order)


@pytest.mark.parametrize(
    "order", [{"schedule": FIFO}, {"schedule": LIFO}, {"schedule": SEEDED, "seed": 3}]
)
def test_what_a_block_sends_is_there_after_the_wait_in_every_round(
    library: Library, order: dict[str, int]
) -> None:
    result = mail(library, 0, **order)
    assert (result.status, result.findings) == (0, [])
    before = np.roll(VALUES.reshape(4, 32), 1, axis=0)[:, ::-1]
    assert (result.arrays["out"] == (2 * before + 1).reshape(-1)).all()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1, "a mailbox got 128 bytes where 124 were announced"),
        (2, "a mailbox is waited for in a round that its senders did not announce"),
        (3, "a mailbox is waited for in a round that its senders did not announce"),
    ],
)
def test_a_round_that_was_not_announced_as_it_came_traps(
    library: Library, value: int, says: str
) -> None:
    result = mail(library, value)
    assert result.status == TRAPPED
    assert says in result.findings[0]["message"]
    assert result.line(result.findings[0]) == marked(FILE, "mail-wait")


@pytest.mark.parametrize(("value", "where"), [(4, "mail-early-read"), (5, "mail-read")])
def test_only_the_wait_orders_what_was_sent(library: Library, value: int, where: str) -> None:
    result = mail(library, value)
    places = {result.line(f) for f in result.findings if f["kind"] == "race"}
    assert places & {marked(FILE, where), marked(FILE, "mail-late-write")}
