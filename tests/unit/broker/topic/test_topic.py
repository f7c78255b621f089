"""What a topic tells its parts as it is changed, as partitions come and go, and as it closes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.runtime.metrics import TopicStats
from goq.broker.topic import topic as topic_module
from goq.broker.topic.topic import Topic
from goq.config.topic import EffectiveSettings, TopicSettings
from goq.errors import NotAllowed, NotLeader, ShuttingDown, TopicNotFound, TopicReadOnly
from goq.model import AUDIT_TOPIC
from goq.storage.catalog.rows import DoubtKind, TopicDoubt

BY_TOPIC = TopicSettings().changed({"delivery.ordering": "none"})
PARTITIONED = {"ordering": "partition"}


class Partitions(dict[int, Any]):
    """The partitions of a topic that are open here."""

    count = 0

    def __init__(self, case: Case, *numbers: int) -> None:
        super().__init__({number: case.partition(number) for number in numbers})
        self._case = case

    def __iter__(self) -> Any:
        return iter(self.values())

    def take(self, number: int) -> Any:
        return self.pop(number)

    def close(self, reason: Exception) -> None:
        self._case.steps.append(("partitions closed", reason))


class Case:
    """A topic of three partitions, whose parts note what they are told in order."""

    def __init__(self, name: str = "t") -> None:
        self.steps: list[Any] = []
        self.failed_logs, self.faults = set[int](), dict[int, Exception]()
        made: Any = Topic.__new__(Topic)
        self.topic = made
        made.name, made.id = name, 7
        made.settings = BY_TOPIC
        made.groups, made.stats = {}, TopicStats()
        made._effective = EffectiveSettings(BY_TOPIC)
        made.publisher = SimpleNamespace(settings=None, refusal=None)
        made.receiver = self.part("receiver", log_readers=self.part("readers"))
        made.coordinator, made.settler = self.part("coordinator"), self.part("settler")
        made.credits = self.part("credits")
        made.opener = self.part("opener", close=self._async("opener", "close"))
        made.partitions = Partitions(self, 0, 1, 2)
        made._outbox_workers = {
            number: self.part("outbox", stop=self._async("outbox", "stop", number))
            for number in range(3)
        }
        made._closing = asyncio.Event()

    def part(self, name: str, **known: Any) -> Any:
        steps = self.steps

        class Part(SimpleNamespace):
            def __getattr__(self, method: str) -> Any:
                return lambda *given: steps.append((name, method, *given))

        return Part(**known)

    def _async(self, name: str, method: str, *known: object) -> Any:
        async def call(*given: object, **named: object) -> None:
            self.steps.append((name, method, *known, *given, *named.values()))
            if name == "partition" and known[0] in self.faults:
                raise self.faults[known[0]]

        return call

    def partition(self, number: int) -> Any:
        return self.part(
            f"partition {number}",
            identity=SimpleNamespace(number=number),
            close=self._async("partition", "close", number),
            resign=self._async("partition", "resign", number),
        )


def changed(group: str) -> list[Any]:
    """Return what is told when the ordering of a group changes."""
    return [
        ("coordinator", "forget", group),
        *[(f"partition {number}", "start_group_over", group) for number in range(3)],
        ("receiver", "restart", group),
    ]


def test_a_group_begins_anew_when_its_ordering_changes_and_at_no_other_change() -> None:
    case = Case()
    topic = case.topic
    topic.add_group("g")
    assert topic.groups == {"g": {}}
    topic.configure_group("g", {"max_attempts": "3"})
    topic.add_group("g")
    assert topic.groups == {"g": {"max_attempts": "3"}}
    assert topic.settings_of("g").attempts_max == 3
    assert case.steps == []
    topic.configure_group("g", PARTITIONED)
    assert case.steps == changed("g")
    assert topic.stats.change_count == 3


def test_changed_settings_of_a_topic_reach_its_groups_partitions_and_publisher() -> None:
    case = Case()
    topic = case.topic
    topic.add_group("follows")
    topic.configure_group("own", PARTITIONED)
    case.steps.clear()
    before = topic.stats.change_count
    settings = TopicSettings().changed({"delivery.ordering": "key"})
    topic.configure(settings)
    configured = [(f"partition {number}", "configure", settings) for number in range(3)]
    assert case.steps == [*changed("follows"), *configured]
    assert topic.settings is topic.publisher.settings is settings
    assert topic.stats.change_count > before
    case.steps.clear()
    topic.configure(settings.changed({"delivery.max_attempts": 9}))
    assert [step[1] for step in case.steps] == ["configure"] * 3


def test_nothing_is_left_of_a_group_that_was_deleted() -> None:
    case = Case()
    topic = case.topic
    topic.configure_group("g", {"max_attempts": "3"})
    topic.stats.groups["g"].dead_messages = 5
    count = topic.stats.change_count
    case.steps.clear()
    topic.forget_group("g")
    topic.forget_group("unknown")
    assert (topic.groups, dict(topic.stats.groups)) == ({}, {})
    assert topic.settings_of("g") is BY_TOPIC
    assert topic.stats.change_count == count + 2
    assert case.steps[:2] == [("coordinator", "forget", "g"), ("receiver", "restart", "g")]


def test_a_topic_in_doubt_takes_messages_unless_it_is_read_only() -> None:
    case = Case()
    topic = case.topic
    for kind in DoubtKind:
        topic.set_doubt(TopicDoubt(kind, "its settings were lost"))
        is_read_only = kind is DoubtKind.READ_ONLY
        assert topic.is_read_only is is_read_only
        assert isinstance(topic.publisher.refusal, TopicReadOnly) is is_read_only
    topic.set_doubt(None)
    assert (topic.publisher.refusal, topic.is_read_only) == (None, False)
    audit = Case(AUDIT_TOPIC).topic
    audit.set_doubt(None)
    assert isinstance(audit.publisher.refusal, NotAllowed)


def test_partitions_that_are_expected_are_shared_out() -> None:
    case = Case()
    case.topic.expect(9)
    assert case.topic.partitions.count == 9
    assert case.steps == [("coordinator", "on_partitions_added")]


def test_a_partition_that_another_node_leads_lets_everyone_know_who_waits() -> None:
    case, reason = Case(), NotLeader("another node leads")
    asyncio.run(case.topic.resign(1, reason))
    assert case.steps == [
        ("partition", "resign", 1, reason),
        ("outbox", "stop", 1),
        ("settler", "on_resigned", 1),
        ("readers", "wake", 1),
    ]
    assert sorted(case.topic.partitions.keys()) == sorted(case.topic._outbox_workers) == [0, 2]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_partition_that_went_offline_is_loaded_again_unless_its_topic_is_closed(
    is_closed: bool,
) -> None:
    case = Case()
    if is_closed:
        case.topic._closing.set()
    case.topic._reopen(1)
    assert case.steps == [
        ("receiver", "on_offline"),
        *[("opener", "reopen_later", 1)] * (not is_closed),
    ]


def test_consumers_of_a_partition_that_was_loaded_again_get_its_messages() -> None:
    case = Case()
    case.topic._on_reopened(1)
    assert case.steps == [
        ("credits", "on_settled", 1, None, 0),
        ("coordinator", "on_reopened", 1),
        ("receiver", "wake"),
    ]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_topic_ends_its_outboxes_wakes_who_waits_and_closes_its_partitions(
    is_deleted: bool,
) -> None:
    case, reason = Case(), TopicNotFound("it was deleted")
    asyncio.run(case.topic.close(reason, is_deleted=is_deleted))
    is_needed = not is_deleted
    assert case.steps == [
        *[("outbox", "stop", number) for number in range(3)],
        ("receiver", "close", reason),
        ("credits", "wake_all"),
        ("coordinator", "close"),
        ("opener", "close"),
        *[("partition", "close", number, is_needed) for number in range(3)],
        ("partitions closed", reason),
    ]
    assert case.topic.is_closed
    assert case.topic._outbox_workers == {}


def test_the_first_failure_of_a_partition_is_raised_once_all_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_module, "_CLOSED_AT_ONCE", 2)
    case = Case()
    case.faults = {1: ZeroDivisionError("first"), 2: ZeroDivisionError("second")}
    with pytest.raises(ZeroDivisionError, match="first"):
        asyncio.run(case.topic.close(ShuttingDown("the node stops")))
    closed = [step[2] for step in case.steps if step[:2] == ("partition", "close")]
    assert closed == [0, 1, 2]
    assert case.steps[-1][0] == "partitions closed"
