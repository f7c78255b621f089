"""The media type of an answer by the header Accept, as RFC 9110 has it."""

from __future__ import annotations

import pytest

from goq.api.codec.negotiation import preferred
from goq.api.route import FRAMES, JSON, NDJSON


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        (FRAMES, FRAMES),
        (NDJSON, NDJSON),
        ("Application/VND.goq.Frames", FRAMES),
        (f"{FRAMES};q=0", JSON),
        (f"{FRAMES} ; Q=0.000, */*;q=0.1", JSON),
        (f"{FRAMES};q=0.5, {JSON}", JSON),
        (f"{FRAMES};q=0.5, {JSON};q=0.4", FRAMES),
        (f"{JSON}, {FRAMES}", FRAMES),
        (f"*/*, {FRAMES}", FRAMES),
        (f"*/*, {FRAMES};q=0.9", JSON),
        (f"*/*, application/*;q=0.2, {FRAMES};q=0.9", FRAMES),
        (f"*/*, {JSON};q=0, {FRAMES};q=0.001", FRAMES),
        (f"text/html, {FRAMES};q=0.1", FRAMES),
        ("text/html", JSON),
        (f"{FRAMES};q=0.5, {NDJSON}", NDJSON),
        (f"{FRAMES}, {NDJSON};q=0.5", FRAMES),
        (f"{NDJSON}, {FRAMES}", FRAMES),
        (f"{FRAMES};version=1;q=0.3, {NDJSON};charset=utf-8;q=0.4", NDJSON),
        (f"{FRAMES};q=0, {FRAMES}", FRAMES),
        (f"{FRAMES};q=high, {JSON};q=0.9", FRAMES),
        (f"{FRAMES}-2, application/vnd.goq", JSON),
        (f",, {FRAMES} ,", FRAMES),
    ],
)
def test_the_type_with_the_highest_quality_is_chosen(accept: str, chosen: str) -> None:
    assert preferred(accept) == chosen
