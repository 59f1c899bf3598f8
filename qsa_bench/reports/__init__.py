"""A campaign for other programs: CI's annotations and test lists, viewers, one page to look at.

Each module turns a stored run into text, from the run's files alone.
"""

from __future__ import annotations
