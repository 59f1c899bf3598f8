"""A sweep beside the published ones: which of them it is held against."""

from __future__ import annotations

from tests.sweep_place import (  # noqa: F401 - a fixture
    AXES,
    Place,
    rows_of,
    sweep_place,
)


def test_a_sweep_is_held_against_the_newest_published_one_of_the_same_points(place: Place) -> None:
    published = place.results / "published"
    first = place.run(results=published)
    assert "no other sweep" in str(first.run.notes["published"]["why"]), "not against itself"
    other = place.run(results=published, axes={**AXES, "context": ("8192",)})
    assert "no other sweep" in str(other.run.notes["published"]["why"])
    again = place.run()
    assert again.run.notes["published"]["run"] == first.run.id
    assert sum(again.run.notes["published"]["counts"].values()) == len(rows_of(first))
