"""A relayed publish is sent again only while it certainly had no effect."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from goq.clock import ManualClock
from goq.cluster.forwarding import remote_partition
from goq.cluster.forwarding.remote_partition import ForwardedPublishServer, RemotePartition
from goq.errors import (
    GoqError,
    NotLeader,
    PartitionOffline,
    StorageFull,
    TimedOut,
    TopicNotFound,
    Unavailable,
)
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView

_STORED = msgspec.msgpack.encode((7, 1, False, []))
_FRAME = FrameView.parse(encode_frame(Columns([b"a"])))


class _Leaders:
    """Answers calls to the leader in turn; the last answer stays."""

    def __init__(self, *answers: bytes | GoqError) -> None:
        self.calls = 0
        self._answers = list(answers)

    async def call(self, _topic: str, _number: int, _path: str, _body: bytes) -> bytes:
        self.calls += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, GoqError):
            raise answer
        return answer


def _published(leaders: _Leaders) -> int:
    async def run() -> int:
        partition = RemotePartition("t", 0, leaders.call, ManualClock(), lambda: True)
        return (await partition.publish(_FRAME)).offset

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_partition, "_NO_LEADER_TIMEOUT_S", 0.2)


def test_a_publish_is_sent_again_while_no_leader_is_reached() -> None:
    leaders = _Leaders(NotLeader("moving"), Unavailable("refused"), NotLeader("moving"), _STORED)
    assert _published(leaders) == 7
    assert leaders.calls == 4


def test_a_publish_that_may_be_stored_is_not_sent_again() -> None:
    leaders = _Leaders(NotLeader("moving"), TimedOut("broken"), _STORED)
    with pytest.raises(TimedOut):
        _published(leaders)
    assert leaders.calls == 2


def test_a_refusal_of_the_leader_is_that_of_the_publish() -> None:
    with pytest.raises(StorageFull):
        _published(_Leaders(StorageFull("no room")))


def test_a_partition_without_a_leader_is_offline_in_the_end() -> None:
    with pytest.raises(PartitionOffline):
        _published(_Leaders(NotLeader("nobody")))


@pytest.mark.parametrize("comes", [True, False])
def test_a_leader_that_lacks_a_topic_asks_for_the_newest_metadata(comes: bool) -> None:
    producers: Any = []
    topic: Any = type("Topic", (), {})()
    appender: Any = type("Appender", (), {})()
    appender.producer_snapshot = lambda _id: type("Known", (), {"producers": producers})()
    topic.partitions = [type("Partition", (), {"appender": appender})()]

    class Broker:
        def __init__(self) -> None:
            self.topics: dict[str, Any] = {}

        def topic(self, name: str) -> Any:
            if name not in self.topics:
                raise TopicNotFound("no topic")
            return self.topics[name]

    broker: Any = Broker()

    async def catch_up() -> None:
        if comes:
            broker.topics = {"t": topic}

    server = ForwardedPublishServer(broker, catch_up)
    asked = server.handle_producers("n2", msgspec.msgpack.encode(("t", 0, 5)))
    if comes:
        assert asyncio.run(asked) == [msgspec.msgpack.encode([])]
    else:
        with pytest.raises(TopicNotFound):
            asyncio.run(asked)
