"""Small calls between nodes over their streams, which cost a fraction of calls over HTTP.

    call            5 · number u64 · size u16 of the path · path · body
    answer          6 · number u64 · status u16 · body
    held call       7 · as a call
    give up         8 · number u64

All integers are little-endian. The caller numbers its calls on a stream from 1 on; answers come in
any order. The stream has authenticated both nodes and their disks, and its seals let no frame be
repeated. An answer with another status than 200 is an error, in the form of :mod:`rpc.server`.

A *held* call changes nothing at the other node, and may wait there for long. Its caller can give it
up: the other node carries it out no further, and answers all the same.

A stream keeps its order, so a call may wait behind pushes, or for a peer that is silent. Then the
calls that follow go over HTTP until it is answered. A call whose stream ends may have been carried
out. At most ``limits.STREAM_CALLS_MAX`` calls wait on a stream, at most half of them held ones;
those beyond go over HTTP.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.cluster.metadata.features import has_held_calls, has_stream_calls
from goq.cluster.metadata.state import MetadataState
from goq.cluster.replication.push.protocol import PeerStream
from goq.cluster.rpc.server import RefusableBody, ResponseBody, error_body, error_of
from goq.errors import InvalidFrame, RouteNotFound, TimedOut, Unavailable

CALL_KIND: Final = 5
ANSWER_KIND: Final = 6
HELD_CALL_KIND: Final = 7
GIVE_UP_KIND: Final = 8
_CALL = struct.Struct("<BQH")
_ANSWER = struct.Struct("<BQH")
_GIVE_UP = struct.Struct("<BQ")

Answer = Callable[[str, str, str, bytes], Awaitable[tuple[int, ResponseBody]]]
"""Answers a call: the node, its disk, the path and the body; returns a status and a body."""


class CallStream(PeerStream, Protocol):
    """A stream with a node that has shown its disk, and when something was received last."""

    disk: str
    received_s: float

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait to be sent."""


class StreamCalls:
    """The calls over the streams of this node.

    ``answer`` answers the calls of other nodes; it is set once this node can.
    """

    def __init__(self, state: Callable[[], MetadataState]) -> None:
        self.answer: Answer | None = None
        self._state = state
        self._streams: dict[str, _StreamOfCalls] = {}
        self._tasks = Tasks()

    def on_stream_open(self, node: str, stream: CallStream) -> None:
        """Call a node over a stream, instead of one before."""
        self.on_stream_close(node)
        self._streams[node] = _StreamOfCalls(stream)

    def on_stream_close(self, node: str) -> None:
        """Fail the calls that wait for an answer over the stream with a node."""
        before = self._streams.pop(node, None)
        if before is not None:
            before.end(node)

    def is_alive(self, node: str) -> bool:
        """Whether the sign of life that is due was received over the stream with a node."""
        stream = self._streams.get(node)
        if stream is None:
            return False
        silent_s = asyncio.get_running_loop().time() - stream.stream.received_s
        return silent_s < 1.5 * limits.PUSH_STREAM_CHECK_S

    async def call(
        self, node: str, path: str, body: bytes, wait_ms: int, *, is_held: bool = False
    ) -> bytes | None:
        """Call a node, and return the body of its answer; None if the call must go over HTTP.

        The node may wait ``wait_ms`` before it answers. A call that ``is_held`` is given up when
        this is cancelled.

        Raises ``TimedOut`` if no answer came, and any ``GoqError`` that the node answers with.
        """
        stream = self._streams.get(node)
        if (
            stream is None
            or len(body) > limits.STREAM_CALL_BYTES_MAX
            or not stream.has_room
            or not has_stream_calls(self._state())
            or (is_held and not (stream.may_hold and has_held_calls(self._state())))
        ):
            return None
        number = stream.send(path, body, wait_ms / 1000, is_held=is_held)
        if number is None:
            return None
        answering = stream.answer_to(number)
        try:
            async with asyncio.timeout((limits.RPC_TIMEOUT_MS + wait_ms) / 1000):
                status, answer = await answering
        except TimeoutError:
            stream.forget(number)
            raise TimedOut(f"node {node} does not answer over the stream") from None
        finally:
            if is_held and answering.cancelled():
                stream.give_up(number)
        if status != 200:
            raise error_of(answer)
        return answer

    def receive(self, node: str, data: bytes) -> bool:
        """Take a frame of a node; return False if it is no call and no answer.

        Raises ``InvalidFrame`` if it should be one.
        """
        kind, stream = data[0], self._streams.get(node)
        if kind not in (CALL_KIND, ANSWER_KIND, HELD_CALL_KIND, GIVE_UP_KIND):
            return False
        if stream is None:
            return True
        if kind == ANSWER_KIND:
            stream.on_answer(data)
        elif kind == GIVE_UP_KIND:
            stream.on_give_up(data)
        else:
            number, path, body = _decoded_call(data)
            stream.on_call()
            task = self._tasks.start(self._answer(node, stream, number, path, body))
            # Not by the task itself, which may be given up before it begins. Without an answer the
            # stream counts as stalled.
            task.add_done_callback(lambda _: stream.answer(number))
            if kind == HELD_CALL_KIND:
                stream.held[number] = task
        return True

    async def _answer(
        self, node: str, stream: _StreamOfCalls, number: int, path: str, body: bytes
    ) -> None:
        if self.answer is not None:
            disk = stream.stream.disk
            stream.answers[number] = await self.answer(node, disk, path, body)


class _StreamOfCalls:
    """One stream, and the calls over it that wait for their answers."""

    def __init__(self, stream: CallStream) -> None:
        self.stream = stream
        self._number = 0
        self._waiting: dict[int, tuple[float, asyncio.Future[tuple[int, bytes]]]] = {}
        """When an answer is overdue, and where it goes."""
        self._answering = 0
        """How many calls of the other node are carried out."""
        self.held: dict[int, asyncio.Task[None]] = {}
        """Those of them that it may give up."""
        self.answers: dict[int, tuple[int, ResponseBody]] = {}
        """The answers that are about to be sent."""

    @property
    def has_room(self) -> bool:
        """Whether no answer is overdue, and not too many are waited for."""
        if not self._waiting:
            return True
        now_s = asyncio.get_running_loop().time()
        is_overdue = any(due_s < now_s for due_s, _ in self._waiting.values())
        return not is_overdue and len(self._waiting) < limits.STREAM_CALLS_MAX

    @property
    def may_hold(self) -> bool:
        """Whether one more call may be held: half of the room is for those answered at once."""
        return len(self._waiting) < limits.STREAM_CALLS_MAX // 2

    def send(self, path: str, body: bytes, wait_s: float, *, is_held: bool) -> int | None:
        """Send a call; return its number, or None if the stream takes nothing."""
        self._number += 1
        name = path.encode()
        kind = HELD_CALL_KIND if is_held else CALL_KIND
        head = _CALL.pack(kind, self._number, len(name))
        if not self.stream.send(head, name, body):
            return None
        loop = asyncio.get_running_loop()
        due_s = loop.time() + wait_s + limits.STREAM_CALL_PATIENCE_S
        self._waiting[self._number] = due_s, loop.create_future()
        return self._number

    def answer_to(self, number: int) -> asyncio.Future[tuple[int, bytes]]:
        """Return the status and the answer of a call that was sent."""
        return self._waiting[number][1]

    def forget(self, number: int) -> None:
        """Wait no more for the answer to a call; the next call tries whether others come."""
        self._waiting.pop(number, None)

    def give_up(self, number: int) -> None:
        """Tell the other node that nobody waits for a call; then its answer is due at once."""
        if number in self._waiting and self.stream.send(_GIVE_UP.pack(GIVE_UP_KIND, number)):
            due_s = asyncio.get_running_loop().time() + limits.STREAM_CALL_PATIENCE_S
            self._waiting[number] = due_s, self._waiting[number][1]

    def on_call(self) -> None:
        """Count a call of the other node; raise ``InvalidFrame`` if there are too many."""
        if self._answering >= limits.STREAM_CALLS_MAX:
            raise InvalidFrame("too many calls at once")
        self._answering += 1

    def on_give_up(self, data: bytes) -> None:
        """End a call of the other node, unless it is answered."""
        if len(data) != _GIVE_UP.size:
            raise InvalidFrame("not the end of a call")
        _, number = _GIVE_UP.unpack(data)
        task = self.held.get(number)
        if task is not None:
            task.cancel()

    def answer(self, number: int) -> None:
        """Answer a call of the other node, with an error if there is no answer."""
        self._answering -= 1
        self.held.pop(number, None)
        status, body = self.answers.pop(number, _NO_ANSWER)
        if isinstance(body, RefusableBody):
            if self._takes(sum(map(len, body))) and self._send_answer(number, status, body):
                return
            body.on_refused()
            status, body = _NOT_TAKEN
        self._send_answer(number, status, body)

    def _takes(self, size_bytes: int) -> bool:
        """Return whether an answer that can be refused is sent: pushes must not wait for long."""
        if size_bytes > limits.RAFT_MESSAGE_BYTES_MAX // 2:
            return False
        return self.stream.waiting_bytes + size_bytes <= limits.STREAM_ANSWERS_BYTES_MAX

    def _send_answer(self, number: int, status: int, body: ResponseBody) -> bool:
        return self.stream.send(_ANSWER.pack(ANSWER_KIND, number, status), *body)

    def on_answer(self, data: bytes) -> None:
        """Finish a call, unless it was given up."""
        if len(data) < _ANSWER.size:
            raise InvalidFrame("not an answer to a call")
        _, number, status = _ANSWER.unpack_from(data)
        _, answering = self._waiting.pop(number, (0.0, None))
        if answering is not None and not answering.done():
            answering.set_result((status, data[_ANSWER.size :]))

    def end(self, node: str) -> None:
        """Fail all calls, and end those that are held here."""
        for task in self.held.values():
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for _, answering in waiting.values():
            if not answering.done():
                answering.set_exception(TimedOut(f"the stream with node {node} has ended"))


_NO_ANSWER = Unavailable.http_status, error_body(Unavailable("this node starts or stops"))
_NOT_TAKEN = (
    RouteNotFound.http_status,
    error_body(RouteNotFound("the stream does not take this answer: ask over HTTP")),
)


def _decoded_call(data: bytes) -> tuple[int, str, bytes]:
    if len(data) < _CALL.size:
        raise InvalidFrame("not a call")
    _, number, size_bytes = _CALL.unpack_from(data)
    end = _CALL.size + size_bytes
    try:
        return number, data[_CALL.size : end].decode(), data[end:]
    except UnicodeDecodeError:
        raise InvalidFrame("the path of a call is no text") from None
