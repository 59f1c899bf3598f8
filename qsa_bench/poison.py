"""The byte that outputs and scratch start as, so that what a kernel left unwritten shows.

0xA5 is no mask value, as i32 no token id, and as f32 -2.87e-16.
"""

from __future__ import annotations

POISON = 0xA5
