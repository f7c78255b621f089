"""Where dead letters are: of a topic of its own, of one that is shared, of one not opened yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.dlq.place import DeadLetterPlace, dead_letter_place


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    ("name", "place", "is_shared"),
    [
        ("plain", DeadLetterPlace("plain", "plain.dlq"), False),
        ("plain.dlq", DeadLetterPlace("plain", "plain.dlq"), False),
        ("gone", DeadLetterPlace("gone", "gone.dlq"), False),
        ("orders", DeadLetterPlace("orders", "bin"), True),
        ("orders.dlq", DeadLetterPlace("orders", "orders.dlq"), False),
        ("bin", DeadLetterPlace(None, "bin"), True),
        ("own", DeadLetterPlace("own", "own.dlq"), False),  # its setting names itself
    ],
)
def test_dead_letters_are_where_the_settings_of_their_topic_say(
    name: str, place: DeadLetterPlace, is_shared: bool, is_open: bool
) -> None:
    chosen = {"plain": None, "orders": "bin", "own": "own", "bin": None}
    topics: Any = {
        each: SimpleNamespace(settings=SimpleNamespace(dead_letter_topic=dead))
        for each, dead in chosen.items()
    }
    rows: Any = {
        each: SimpleNamespace(settings={} if dead is None else {"dead_letters.topic": dead})
        for each, dead in chosen.items()
    }
    found = dead_letter_place(name, topics if is_open else {}, {} if is_open else rows)
    assert (found, found.is_shared) == (place, is_shared)
