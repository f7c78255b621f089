"""What a leader counts of what followers say that they have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.disk import SimulatedDisk

from goq.broker.opening import open_logs
from goq.cluster.replication.leading import Leading
from goq.cluster.replication.messages import FetchAnswer, FetchRequest, PartitionKey, Position
from goq.cluster.replication.progress import Ends, Progress
from goq.cluster.replication.serving import FetchServer
from goq.frame.encode import Columns, encode_frame
from goq.frame.view import FrameView
from goq.settings import TopicSettings

KEY = PartitionKey("t", 1, 0)
EPOCH = 2


class Led:
    """A leader in epoch 2 with one message of epoch 1, and a follower that asks it."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
        self._append(1)
        progress = Progress("n1", Ends(1, 0), in_sync=("n1", "n2"), min_insync=2)
        progress.begin(("n1", "n2"), 0)
        self.leading = Leading(KEY, EPOCH, self._logs, progress)
        self.server = FetchServer(executor)
        self._session = 0

    def _append(self, leader_epoch: int) -> None:
        log = self._logs.messages
        view = FrameView.parse(encode_frame(Columns([b"x"])))
        batch = log.begin(1)
        batch.add(view.header, view.body, append_time_us=1, leader_epoch=leader_epoch)
        log.write(batch)
        log.commit(batch)
        log.sync()

    def append(self) -> None:
        self._append(EPOCH)
        self.leading.appended(0, self._logs.messages.end_offset)

    def lead(self) -> None:
        async def lead() -> None:
            self.server.lead(self.leading)

        asyncio.run(lead())

    def ask(self, end: int, epoch: int, *, is_new: bool = False) -> FetchAnswer:
        """Ask as a follower whose last message, before ``end``, is of an epoch."""
        position = Position(KEY, EPOCH, Ends(end, 0), Ends(epoch, -1))
        self._session += is_new
        request = FetchRequest("n2", self._session, is_new, [position], [], 0)
        answer, _ = asyncio.run(self.server.fetch(request))
        return answer

    @property
    def safe(self) -> int:
        return self.leading.progress.high_watermark.messages


@pytest.fixture
def led() -> Iterator[Led]:
    with ThreadPoolExecutor(1) as executor:
        led = Led(executor)
        led.lead()
        yield led


def test_what_a_former_leader_has_of_its_own_never_passes_for_what_is_appended_later(
    led: Led,
) -> None:
    (news,) = led.ask(3, 1, is_new=True).news
    assert news.messages is not None
    assert news.messages.diverges_at == 1
    led.append()
    led.append()
    assert led.safe == 0
    led.ask(3, 1, is_new=True)  # the answer was lost: it asks again from where it was
    assert led.safe == 0
    led.ask(1, 1)
    assert led.safe == 1


def test_a_follower_whose_log_is_the_same_counts_at_once(led: Led) -> None:
    led.ask(1, 1, is_new=True)
    assert led.safe == 1


def test_a_follower_that_has_everything_is_not_answered_before_there_is_something(
    led: Led,
) -> None:
    assert led.ask(1, 1, is_new=True).news == []
    assert led.safe == 1


def test_a_follower_counts_with_what_an_answer_has_led_it_to(led: Led) -> None:
    led.append()
    led.ask(1, 1, is_new=True)
    led.ask(2, EPOCH)
    assert led.safe == 2


def test_who_asked_before_the_leadership_began_is_looked_at_first() -> None:
    with ThreadPoolExecutor(1) as executor:
        led = Led(executor)
        (news,) = led.ask(3, 1, is_new=True).news
        assert news.refusal
        led.lead()
        led.append()
        led.append()
        assert led.safe == 0
