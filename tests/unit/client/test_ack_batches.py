"""Acks that come while one is under way share a request; none waits for what does not end."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

import pytest

from goq.client._async.consume.ack_batches import AckBatches as AsyncAckBatches
from goq.client._sync.consume.ack_batches import AckBatches
from goq.client.messages import FailedReceipt, Settled
from goq.errors import Unavailable
from tests.support.client.interrupts import WAIT_S_MAX, interrupted_at, is_done

FILES = ("ack_batches.py", "runtime.py", "threading.py")


class Node:
    """A node whose answers the test gives; ``requests`` are those that came."""

    def __init__(self) -> None:
        self.requests: list[Sequence[str]] = []
        self.answers: list[asyncio.Future[Settled]] = []
        self.until_s: list[float] = []
        self.on_failed: list[Callable[[], None]] = []
        self.batches = AsyncAckBatches()

    async def send(
        self, receipts: Sequence[str], *, until_s: float, on_failed: Callable[[], None]
    ) -> Settled:
        self.requests.append(receipts)
        self.on_failed.append(on_failed)
        self.until_s.append(until_s)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def ack(
        self, receipt: str, key: str = "k", until_s: float = inf
    ) -> asyncio.Task[FailedReceipt | None]:
        return asyncio.ensure_future(self.batches.ack(key, receipt, until_s, self.send))

    async def came(self, count: int) -> None:
        """Let tasks run until so many requests came, and no more."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(self.requests) == count


def test_an_ack_alone_is_sent_at_once_and_those_meanwhile_share_the_next_request() -> None:
    async def run() -> None:
        node = Node()
        acks = [node.ack(f"r{number}") for number in range(10)]
        await node.came(1)
        assert node.requests == [["r0"]]
        node.answers[0].set_result(Settled(1, []))
        await node.came(2)
        assert node.requests[1] == [f"r{number}" for number in range(1, 10)]
        late = node.ack("r10")
        await node.came(2)
        node.answers[1].set_result(Settled(8, [FailedReceipt("r4", "lease_lost")]))
        await node.came(3)
        node.answers[2].set_result(Settled(1, []))
        found = [await each for each in (*acks, late)]
        assert [each and each.receipt for each in found] == [None] * 4 + ["r4"] + [None] * 6
        assert node.batches._last == {}

    asyncio.run(run())


def test_acks_of_other_leaders_wait_for_nothing() -> None:
    async def run() -> None:
        node = Node()
        acks = [node.ack("r", key) for key in ("a", "b", "c")]
        await node.came(3)
        for answer in node.answers:
            answer.set_result(Settled(1, []))
        await asyncio.gather(*acks)

    asyncio.run(run())


def test_acks_do_not_wait_for_those_that_are_tried_again() -> None:
    async def run() -> None:
        node = Node()
        retried = node.ack("of an offline partition")
        await node.came(1)
        acks = [node.ack(f"r{number}") for number in range(3)]
        await node.came(1)
        node.on_failed[0]()
        await node.came(2)
        node.answers[1].set_result(Settled(3, []))
        assert await asyncio.gather(*acks) == [None] * 3
        late = node.ack("r3")
        await node.came(3)
        for answer in (node.answers[2], node.answers[0]):
            answer.set_result(Settled(1, []))
        assert await asyncio.gather(retried, late) == [None] * 2
        assert node.batches._last == {}

    asyncio.run(run())


def test_an_error_is_that_of_all_acks_of_the_request_and_of_no_other() -> None:
    async def run() -> None:
        node = Node()
        acks = [node.ack(f"r{number}") for number in range(3)]
        await node.came(1)
        node.answers[0].set_result(Settled(1, []))
        await node.came(2)
        after = node.ack("r3")
        node.answers[1].set_exception(Unavailable("no leader"))
        await node.came(3)
        node.answers[2].set_result(Settled(1, []))
        found = await asyncio.gather(*acks, after, return_exceptions=True)
        assert [type(each) for each in found] == [type(None), Unavailable, Unavailable, type(None)]

    asyncio.run(run())


@pytest.mark.parametrize("is_sent", [False, True])
def test_acks_whose_sender_is_cancelled_are_sent_by_another(is_sent: bool) -> None:
    async def run() -> None:
        node = Node()
        acks = [node.ack(f"r{number}") for number in range(4)]
        await node.came(1)
        if is_sent:
            node.answers[0].set_result(Settled(1, []))
            await node.came(2)
        acks[1].cancel()  # it is the first of the second request
        await node.came(3 if is_sent else 2)
        node.answers[-1].set_result(Settled(1, []))
        await node.came(4 if is_sent else 3)
        assert sorted(node.requests[-2:]) == [["r2"], ["r3"]]  # whichever woke first
        for answer in node.answers:
            with suppress(asyncio.InvalidStateError):
                answer.set_result(Settled(1, []))
        found = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(each) for each in found[2:]] == [type(None)] * 2
        assert isinstance(found[1], asyncio.CancelledError)

    asyncio.run(run())


def test_a_request_is_tried_for_as_long_as_the_longest_lease_of_its_acks() -> None:
    async def run() -> None:
        node = Node()
        acks = [node.ack(f"r{number}", until_s=until_s) for number, until_s in enumerate((5, 7, 6))]
        await node.came(1)
        node.answers[0].set_result(Settled(1, []))
        await node.came(2)
        node.answers[1].set_result(Settled(2, []))
        await asyncio.gather(*acks)
        assert node.until_s == [5, 7]

    asyncio.run(run())


def _settle(receipts: Sequence[str], *, until_s: float, on_failed: object) -> Settled:
    return Settled(len(receipts), [])


def test_threads_share_requests_too() -> None:
    acks, requests = AckBatches(), list[Sequence[str]]()
    has_begun, may_end = threading.Event(), threading.Event()

    def send(receipts: Sequence[str], *, until_s: float, on_failed: object) -> Settled:
        requests.append(receipts)
        has_begun.set()
        assert may_end.wait(WAIT_S_MAX)
        return Settled(len(receipts), [])

    def ack(number: int) -> None:
        acks.ack("k", f"r{number}", inf, send)

    threads = [threading.Thread(target=ack, args=(number,)) for number in range(8)]
    threads[0].start()
    assert has_begun.wait(WAIT_S_MAX)
    for thread in threads[1:]:
        thread.start()
    while (last := acks._last["k"]) is None or len(last.receipts) < 7:
        pass
    may_end.set()
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert [len(each) for each in requests] == [1, 7]


@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer counts instructions too")
def test_an_ack_that_is_interrupted_at_any_instruction_keeps_no_other_waiting() -> None:
    for number in itertools.count(1):
        acks = AckBatches()
        ack = partial(acks.ack, "k", "r1", inf, _settle)
        if not interrupted_at(number, ack, FILES):
            break
        again = partial(acks.ack, "k", "r2", inf, _settle)
        assert is_done(again), f"interrupted at moment {number}"
    assert number > 20


def test_a_forked_child_does_not_wait_for_acks_of_its_parent() -> None:
    acks = AckBatches()
    has_begun, may_end = threading.Event(), threading.Event()

    def send(receipts: Sequence[str], *, until_s: float, on_failed: object) -> Settled:
        has_begun.set()
        assert may_end.wait(WAIT_S_MAX)
        return Settled(len(receipts), [])

    parent = threading.Thread(target=acks.ack, args=("k", "r1", inf, send))
    parent.start()
    assert has_begun.wait(WAIT_S_MAX)
    child = os.fork()
    if not child:  # only this thread is there
        is_ended = is_done(partial(acks.ack, "k", "r2", inf, _settle))
        os._exit(0 if is_ended else 1)
    _, status = os.waitpid(child, 0)
    may_end.set()
    parent.join(WAIT_S_MAX)
    assert os.waitstatus_to_exitcode(status) == 0
