"""Calls over streams: what is answered, and when a call goes another way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from goq import limits
from goq.cluster.metadata.features import HELD_CALLS_LEVEL, STREAM_CALLS_LEVEL
from goq.cluster.metadata.state import ClusterSettings, Features, MetadataState
from goq.cluster.rpc.server import RefusableBody, ResponseBody, error_body
from goq.cluster.rpc.stream_calls import ANSWER_KIND, CALL_KIND, GIVE_UP_KIND, StreamCalls
from goq.errors import Conflict, InvalidFrame, RouteNotFound, TimedOut, Unavailable
from tests.support.cluster.replication.loop import run_simulated
from tests.support.eventually import until

ANSWER_HEAD_BYTES = 11


class Stream:
    """A stream that hands each frame to the other side, unless it is held."""

    disk = "its disk"
    received_s = 0.0
    waiting_bytes = 0

    def __init__(self, deliver: Callable[[bytes], object]) -> None:
        self._deliver = deliver
        self.is_full = False
        self.is_held = False
        self.is_counted = False
        """Whether what is held counts as waiting."""
        self.held: list[bytes] = []
        self.sent: list[bytes] = []

    def send(self, *parts: bytes | memoryview) -> bool:
        data = b"".join(parts)
        if self.is_full:
            return False
        self.held.append(data)
        self.sent.append(data)
        if self.is_counted:
            self.waiting_bytes += len(data) - ANSWER_HEAD_BYTES
        if not self.is_held:
            self.release()
        return True

    def release(self) -> None:
        self.is_held, held, self.held = False, self.held, []
        for data in held:
            asyncio.get_running_loop().call_soon(self._deliver, data)

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


class World:
    """Two nodes with a stream; ``b`` answers with its caller, the caller's disk and the body."""

    def __init__(self, level: int) -> None:
        features = Features(level)
        state = MetadataState(1, {}, {}, {}, ClusterSettings(3, 2), features=features)
        self.a, self.b = StreamCalls(lambda: state), StreamCalls(lambda: state)
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given_back = 0
        self.begun = self.given_up = 0
        """How many calls wait for the news, or have; how many of them were given up."""
        self.to_b = Stream(lambda data: self.b.receive("a", data))
        self.to_a = Stream(lambda data: self.a.receive("b", data))
        self.b.answer = self._answer
        self.a.on_stream_open("b", self.to_b)
        self.b.on_stream_open("a", self.to_a)

    async def _answer(
        self, node: str, disk: str, path: str, body: bytes
    ) -> tuple[int, ResponseBody]:
        if path == "/refused":
            return 409, error_body(Conflict("not now"))
        if path == "/broken":
            raise RuntimeError("a fault of the program")
        if path == "/receive":
            return 200, RefusableBody([bytes(int(body))], self._give_back)
        if path == "/held":
            self.begun += 1
            try:
                await asyncio.shield(self.news)
            except asyncio.CancelledError:
                self.given_up += 1
                raise
        return 200, [f"{node} {disk} {path} ".encode(), body]

    async def call(self, path: str = "/p", body: bytes = b"body", wait_ms: int = 0) -> bytes | None:
        return await self.a.call("b", path, body, wait_ms)

    def _give_back(self) -> None:
        self.given_back += 1

    async def receive(self, size_bytes: int) -> bytes | None:
        return await self.call("/receive", b"%d" % size_bytes)

    async def hold(self) -> bytes | None:
        return await self.a.call("b", "/held", b"", 60_000, is_held=True)

    async def give_up(self, holding: asyncio.Task[bytes | None]) -> None:
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding


def run(test: Callable[[World], Awaitable[None]], level: int = HELD_CALLS_LEVEL) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await test(World(level))

    run_simulated(main())


def test_a_call_is_answered_and_an_error_is_raised_as_over_http() -> None:
    async def test(world: World) -> None:
        assert await world.call() == b"a its disk /p body"
        with pytest.raises(Conflict, match="not now"):
            await world.call("/refused")
        answers = await asyncio.gather(*(world.call(body=b"%d" % n) for n in range(50)))
        assert answers == [b"a its disk /p %d" % n for n in range(50)]

    run(test)


def test_what_no_stream_can_carry_goes_over_http() -> None:
    async def test(world: World) -> None:
        assert await world.a.call("c", "/p", b"", 0) is None
        assert await world.call(body=bytes(limits.STREAM_CALL_BYTES_MAX + 1)) is None
        world.to_b.is_full = True
        assert await world.call() is None
        world.a.on_stream_close("b")
        assert await world.call() is None

    run(test)


def test_below_the_feature_level_no_call_goes_over_a_stream() -> None:
    async def test(world: World) -> None:
        assert await world.call() is None

    run(test, STREAM_CALLS_LEVEL - 1)


def test_while_an_answer_is_overdue_other_calls_go_over_http() -> None:
    async def test(world: World) -> None:
        world.to_b.is_held = True
        late = asyncio.ensure_future(world.call(body=b"late"))
        await asyncio.sleep(2 * limits.STREAM_CALL_PATIENCE_S)
        assert await world.call() is None
        world.to_b.release()
        assert await late == b"a its disk /p late"
        assert await world.call() is not None
        world.to_b.is_held = True
        may_wait = asyncio.ensure_future(world.call(body=b"held", wait_ms=60_000))
        await asyncio.sleep(2 * limits.STREAM_CALL_PATIENCE_S)
        follows = asyncio.ensure_future(world.call(body=b"next", wait_ms=60_000))
        await asyncio.sleep(0)
        world.to_b.release()
        assert await may_wait == b"a its disk /p held"
        assert await follows == b"a its disk /p next"

    run(test)


def test_calls_of_a_stream_that_ends_or_is_silent_may_have_been_carried_out() -> None:
    async def test(world: World) -> None:
        world.to_b.is_held = True
        waiting = asyncio.ensure_future(world.call())
        await asyncio.sleep(0)
        world.a.on_stream_open("b", Stream(lambda _data: None))
        with pytest.raises(TimedOut, match="has ended"):
            await waiting
        with pytest.raises(TimedOut, match="does not answer"):
            await world.call()

    run(test)


def test_a_node_that_starts_or_breaks_answers_all_the_same() -> None:
    async def test(world: World) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(Unavailable):
            await world.call("/broken")
        world.b.answer = None
        with pytest.raises(Unavailable, match="starts or stops"):
            await world.call()

    run(test)


def test_no_more_calls_wait_on_a_stream_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_CALLS_MAX", 2)

    async def test(world: World) -> None:
        world.to_b.is_held = True
        waiting = [asyncio.ensure_future(world.call()) for _ in range(2)]
        await asyncio.sleep(0)
        assert await world.call() is None
        frames = [*world.to_b.held, world.to_b.held[0]]
        for frame in frames[:2]:
            world.b.receive("a", frame)
        with pytest.raises(InvalidFrame, match="too many"):
            world.b.receive("a", frames[2])
        await asyncio.gather(*waiting)

    run(test)


@pytest.mark.parametrize(
    "frame",
    [
        bytes((CALL_KIND,)),
        bytes((ANSWER_KIND,)) + b"\0" * 5,
        bytes((GIVE_UP_KIND,)) + b"\0" * 7,
        bytes((GIVE_UP_KIND,)) + b"\0" * 9,
        bytes((CALL_KIND,)) + bytes(8) + b"\x02\0" + b"\xff\xff",
    ],
)
def test_a_frame_that_is_no_call_and_no_answer_ends_the_stream(frame: bytes) -> None:
    async def test(world: World) -> None:
        with pytest.raises(InvalidFrame):
            world.b.receive("a", frame)
        assert not world.b.receive("a", b"\x03 of pushes")

    run(test)


def test_an_answer_to_no_call_is_ignored_and_so_is_the_end_of_none() -> None:
    async def test(world: World) -> None:
        assert world.a.receive("b", bytes((ANSWER_KIND,)) + bytes(10))
        assert world.b.receive("a", bytes((GIVE_UP_KIND,)) + bytes(8))
        assert await world.call() is not None

    run(test)


def test_a_held_call_is_answered_when_there_is_news() -> None:
    async def test(world: World) -> None:
        holding = asyncio.ensure_future(world.hold())
        assert await world.call() is not None
        assert not holding.done()
        world.news.set_result(None)
        assert await holding == b"a its disk /held "
        assert world.given_up == 0

    run(test)


@pytest.mark.parametrize("beside_bytes", [0, limits.MIB])
def test_an_answer_is_sent_that_a_message_of_the_stream_can_hold_and_its_buffer(
    beside_bytes: int,
) -> None:
    room_bytes = limits.RAFT_MESSAGE_BYTES_MAX // 2

    async def test(world: World) -> None:
        world.to_a.waiting_bytes = limits.STREAM_ANSWERS_BYTES_MAX - room_bytes + beside_bytes
        left_bytes = room_bytes - beside_bytes
        assert len(await world.receive(left_bytes) or b"") == left_bytes
        assert world.given_back == 0
        with pytest.raises(RouteNotFound, match="over HTTP"):
            await world.receive(left_bytes + 1)
        assert world.given_back == 1

    run(test)


def test_a_large_message_is_refused_also_where_nothing_waits() -> None:
    async def test(world: World) -> None:
        with pytest.raises(RouteNotFound):
            await world.receive(limits.RAFT_MESSAGE_BYTES_MAX // 2 + 1)
        assert world.given_back == 1

    run(test)


def test_what_answers_hold_is_given_back_when_others_fill_the_stream_or_it_ends() -> None:
    async def test(world: World) -> None:
        room = limits.STREAM_ANSWERS_BYTES_MAX // 4
        world.to_a.is_counted = world.to_a.is_held = True
        asking = [asyncio.ensure_future(world.receive(room)) for _ in range(6)]
        await until(lambda: len(world.to_a.sent) == 6)
        world.to_a.release()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in answers] == 4 * [bytes] + 2 * [RouteNotFound]
        assert world.given_back == 2
        world.to_a.waiting_bytes, world.to_a.is_full = 0, True
        lost = asyncio.ensure_future(world.receive(1))
        await until(lambda: world.given_back == 3)
        world.a.on_stream_close("b")
        with pytest.raises(TimedOut):
            await lost

    run(test)


def test_after_an_answer_that_never_came_the_stream_is_tried_again() -> None:
    async def test(world: World) -> None:
        world.to_a.is_full = True
        with pytest.raises(TimedOut, match="does not answer"):
            await world.call()
        world.to_a.is_full = False
        assert await world.call() is not None

    run(test)


def test_held_calls_leave_half_of_the_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_CALLS_MAX", 4)

    async def test(world: World) -> None:
        holding = [asyncio.ensure_future(world.hold()) for _ in range(2)]
        await until(lambda: world.begun == 2)
        assert await world.hold() is None
        assert await world.call() is not None
        world.news.set_result(None)
        assert None not in await asyncio.gather(*holding)
        assert await world.hold() is not None

    run(test)


def test_only_held_calls_are_given_up() -> None:
    async def test(world: World) -> None:
        calling = asyncio.ensure_future(world.call("/held"))
        await until(lambda: world.begun == 1)
        await world.give_up(calling)
        assert len(world.to_b.sent) == 1
        assert await world.call() is not None

    run(test)


def test_an_answered_call_leaves_nothing_behind() -> None:
    async def test(world: World) -> None:
        world.news.set_result(None)
        for _ in range(50):
            await world.hold()
        gc.collect()
        tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
        assert len([each for each in tasks if each.get_loop() is world.news.get_loop()]) < 10

    run(test)


def test_a_held_call_that_is_given_up_ends_at_the_other_node_too_and_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_CALLS_MAX", 2)

    async def test(world: World) -> None:
        for number in range(3):
            holding = asyncio.ensure_future(world.hold())
            await until(lambda number=number: world.begun == number + 1)
            assert await world.hold() is None
            await world.give_up(holding)
            await until(lambda number=number: world.given_up == number + 1)
            await until(lambda number=number: len(world.to_a.sent) == 2 * number + 1)
            assert await world.call() is not None

    run(test)


def test_a_held_call_is_given_up_also_before_the_other_node_has_begun_it() -> None:
    async def test(world: World) -> None:
        world.to_b.is_held = True
        holding = asyncio.ensure_future(world.hold())
        await asyncio.sleep(0)
        await world.give_up(holding)
        world.to_b.release()
        await until(lambda: len(world.to_a.sent) == 1)
        assert world.to_a.sent[0][0] == ANSWER_KIND
        assert world.begun == 0

    run(test)


@pytest.mark.parametrize("takes_the_end", [True, False])
def test_a_call_that_is_given_up_is_overdue_soon_if_the_other_node_was_told(
    takes_the_end: bool,
) -> None:
    async def test(world: World) -> None:
        world.to_b.is_held = True
        holding = asyncio.ensure_future(world.hold())
        await asyncio.sleep(0)
        world.to_b.is_full = not takes_the_end
        await world.give_up(holding)
        world.to_b.is_full = False
        await asyncio.sleep(2 * limits.STREAM_CALL_PATIENCE_S)
        calling = asyncio.ensure_future(world.call())
        await asyncio.sleep(0)
        world.to_b.release()
        assert (await calling is None) is takes_the_end

    run(test)


def test_held_calls_end_with_their_stream_and_others_are_carried_out_in_full() -> None:
    async def test(world: World) -> None:
        holding = asyncio.ensure_future(world.hold())
        other = asyncio.ensure_future(world.call("/held"))
        await until(lambda: world.begun == 2)
        other.cancel()
        await asyncio.sleep(0.01)
        assert world.given_up == 0
        world.to_a.waiting_bytes, world.to_a.is_full = 0, True
        world.b.on_stream_close("a")
        await until(lambda: world.given_up == 1)
        world.a.on_stream_close("b")
        with pytest.raises(TimedOut):
            await holding

    run(test)


def test_below_their_feature_level_held_calls_go_over_http() -> None:
    async def test(world: World) -> None:
        assert await world.hold() is None
        assert await world.call() is not None

    run(test, HELD_CALLS_LEVEL - 1)
