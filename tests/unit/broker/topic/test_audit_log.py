"""A record of the audit trail is stored once, or its author is told that it is not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from goq import limits
from goq.broker.topic import audit_log
from goq.broker.topic.audit_log import AuditLog
from goq.broker.topic.topic import Topic
from goq.errors import NodeFull, NotLeader, StorageFull, TimedOut, TopicExists
from goq.frame.view import FrameView
from goq.model import Message


class _Trail:
    """The topic of the audit trail, which fails as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.is_known = True
        self.checked: list[int] = []
        self.stored: list[Message] = []
        self.publisher = self
        self.log = AuditLog(self._topic, lambda: self.is_known)

    async def _topic(self) -> Topic:
        return cast(Topic, self)

    def own_target(self, number: int) -> Any:
        assert number == 0
        return self

    def check_publish(self, frame_bytes: int) -> None:
        self.checked.append(frame_bytes)
        if self.errors:
            raise self.errors.pop(0)

    async def publish(self, view: FrameView) -> None:
        assert self.checked[-1] == len(view.buffer)
        self.stored += view.messages(0, view.header.message_count)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_RETRY_S", 0)


def test_a_record_has_its_key_and_an_id_by_which_a_repetition_is_known() -> None:
    trail = _Trail()
    for _ in range(2):
        asyncio.run(trail.log.append("someone", b"{}"))
    first, second = trail.stored
    assert (first.key, first.value) == (second.key, second.value) == (b"someone", b"{}")
    assert first.dedup_id
    assert first.dedup_id != second.dedup_id


def test_a_topic_that_another_node_makes_or_leads_meanwhile_is_asked_again() -> None:
    trail = _Trail(TopicExists(""), NotLeader(""), NotLeader(""))
    asyncio.run(trail.log.append("someone", b"{}"))
    assert len(trail.stored) == 1
    assert len(trail.checked) == 4


@pytest.mark.parametrize("error", [StorageFull(""), NodeFull("")])
def test_a_full_disk_is_told_at_once(error: Exception) -> None:
    trail = _Trail(error)
    with pytest.raises(type(error)):
        asyncio.run(trail.log.append("someone", b"{}"))
    assert not trail.stored
    assert len(trail.checked) == 1


def test_a_trail_that_takes_nothing_for_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_WAIT_S", 0.01)
    trail = _Trail(*[NotLeader("")] * 1_000_000)
    with pytest.raises(TimedOut):
        asyncio.run(trail.log.append("someone", b"{}"))
    assert not trail.stored


def test_nothing_is_appended_while_some_node_does_not_know_the_topic() -> None:
    trail = _Trail()
    trail.is_known = False
    asyncio.run(trail.log.append("someone", b"{}"))
    assert not trail.stored
