from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.config.topic import Ordering, TopicSettings
from goq.errors import InvalidInput

DEFAULT = TopicSettings()
DAY_MS = 86_400_000


def changed(key: str, value: Any) -> TopicSettings:
    return DEFAULT.changed({key: value})


def test_what_is_written_reads_back_as_the_same() -> None:
    for settings in (
        DEFAULT,
        changed("priority.lanes", "numbers"),
        changed("priority.weights", [8, 3, 1]),
        changed("tenants.weights", {"acme": 3, "other": 0.5}),
        changed("delivery.backoff.jitter", 0.125),
    ):
        assert TopicSettings().changed(settings.written()) == settings


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("delivery.max_attempts", [1, "1000", "none", None], [0, 1001, "many", 1.5, True, -1]),
        ("delivery.backoff.initial", [0, "7d"], ["7d1ms", -1]),
        ("delivery.backoff.max", [0, "7d"], ["7d1ms"]),
        ("delivery.backoff.jitter", [0, "1", 0.5], [-0.01, 1.01, "x", "nan", True]),
        ("delivery.dead_letters", [True, "false"], [1, "yes", None]),
        ("delivery.ordering", ["key", "none", "partition"], ["fifo", None]),
        ("delay.max", ["0s", "36500d"], ["36501d"]),
        ("priority.lanes", ["a", ["a", "b"], "numbers"], ["", "a,a", "1", "a,,b", 7, "numbers,a"]),
        ("priority.weights", ["strict", "1", [8, 3, 1]], ["0", "", "1,x", 7, "1001"]),
        ("priority.max_wait", ["1ms", "none"], [0, "366d"]),
        ("tenants.weights", ["none", "a=0.001", {"a": 1}], ["a", "a=0", "=1", {"a,b": 1}, "a=inf"]),
        ("tenants.max_in_flight", [1, 1_000_000, "none"], [0, 1_000_001]),
        ("cleanup", ["delete", "compact"], ["keep", None, 1]),
        ("compaction.tombstone_retention", [0, "365d"], [-1, "366d", None]),
        ("dedup.window", ["1s", "30d", "none"], ["999ms", "31d"]),
    ],
)
def test_every_bound_holds_on_both_sides(key: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        changed(key, value)
    for value in bad:
        with pytest.raises(InvalidInput) as raised:
            changed(key, value)
        assert raised.value.field == f"settings.{key}"


def test_there_are_no_more_lanes_than_a_byte_counts() -> None:
    names = [f"l{n}" for n in range(limits.LANES_MAX)]
    assert changed("priority.lanes", names).lane("l255", field="p") == 255
    with pytest.raises(InvalidInput):
        changed("priority.lanes", [*names, "more"])


def test_a_lane_has_a_name_and_a_number() -> None:
    assert [DEFAULT.lane(p, field="p") for p in ("high", "normal", "low", 0, "2")] == [
        0,
        1,
        2,
        0,
        2,
    ]
    assert [DEFAULT.lane_name(n) for n in (0, 1, 2, 3)] == ["high", "normal", "low", "3"]
    for unknown in ("urgent", 3, -1, "3", "²"):
        with pytest.raises(InvalidInput, match="high, normal, low, or 0 to 2"):
            DEFAULT.lane(unknown, field="p")
    numbers = changed("priority.lanes", "numbers")
    assert (numbers.lane(0, field="p"), numbers.lane("255", field="p")) == (0, 255)
    with pytest.raises(InvalidInput, match="there are 0 to 255"):
        numbers.lane(256, field="p")


def test_a_message_without_priority_is_in_the_lane_called_normal_or_the_middle_one() -> None:
    assert DEFAULT.default_lane == 1
    assert changed("priority.lanes", "normal,bulk").default_lane == 0
    assert changed("priority.lanes", "a,b,c,d").default_lane == 2
    assert changed("priority.lanes", "numbers").default_lane == 128


def test_a_group_has_its_own_delivery_settings_and_no_others() -> None:
    group = DEFAULT.for_group({"max_attempts": 9, "backoff": {"initial": "5s"}, "ordering": "none"})
    assert (group.attempts_max, group.backoff_initial_ms) == (9, 5000)
    assert group.ordering is Ordering.NONE
    assert group.written_for_group()["visibility_timeout"] == "30s"
    for other in ("retention.age", "fsync", "delivery.max_attempts"):
        with pytest.raises(InvalidInput, match="not a group setting"):
            DEFAULT.for_group({other: "1d"})


def test_restored_settings_are_those_of_the_defaults_and_the_others_stay() -> None:
    defaults = TopicSettings().changed({"retention.age": "3d"})
    own = defaults.changed({"retention.age": "1d", "fsync": "never"})
    assert own.restored(["retention.age"], defaults) == defaults.changed({"fsync": "never"})
    with pytest.raises(InvalidInput, match="'nope' is not a topic setting"):
        own.restored(["nope"], defaults)
