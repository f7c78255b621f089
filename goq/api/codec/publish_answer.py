"""The answer to the publish of one message or frame: it waits for the append, and renders itself.

The bytes are those of the same :class:`PublishOut`, which costs ten times as much to build and
encode. A standalone node gives such answers; there is one for each message of a client that
publishes message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from goq.api.codec.messages import encode_json
from goq.api.route import JSON
from goq.api.schemas.messages import PublishedOut, PublishOut
from goq.broker.log.pending_appends import Appended
from goq.broker.topic.publisher import PublishedFrame
from goq.clock import TimeSlice
from goq.http.message import DeferredAnswer, Response
from goq.units import format_time_us

_NO_RESULTS = b'{"results":[]'
_JOINED_BYTES_MAX = 256 * 1024

_format_time = lru_cache(maxsize=16)(format_time_us)  # all messages of a frame have one time


class PublishAnswer(DeferredAnswer):
    """Waits for the append of one message to ``topic``; ``partition`` is set once it is known.

    ``tail`` is what :func:`answer_tail` returns. The answer to a frame has no id; it has the
    ``count`` of its messages.
    """

    __slots__ = ("_count", "_is_done", "_tail", "_topic", "partition")

    def __init__(self, topic: str, tail: bytes, *, count: int | None = None) -> None:
        super().__init__()
        self._topic = topic
        self._tail = tail
        self._count = count
        self._is_done = False
        self.partition = 0

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._is_done

    def set_result(self, appended: Appended) -> None:
        """Answer with the position of the message, or of the frame's first."""
        self._is_done = True
        offset, time_us, duplicate, left_out = appended
        if duplicate or left_out:
            self.complete(Response(200, self._repetition(appended), JSON))
            return
        place = b'{"results":[{"partition":%d,"offset":%d,"timestamp":"%b",' % (
            self.partition,
            offset,
            _format_time(time_us).encode(),
        )
        if self._count is not None:
            body = b'%b"count":%d,"duplicate":false%b' % (place, self._count, self._tail)
        else:
            name = self._topic.encode()
            body = b'%b"id":"%b:%d:%d"%b' % (place, name, self.partition, offset, self._tail)
        self.complete(Response(200, body, JSON))

    def _repetition(self, appended: Appended) -> bytes:
        """Return the answer to a frame of which something was stored before."""
        assert self._count is not None
        offset, time_us, duplicate, left_out = appended
        place = (self.partition, offset, self._count, time_us, duplicate, left_out)
        return b'{"results":[' + encode_json(frame_result(PublishedFrame(*place)))[:-1] + self._tail

    def set_exception(self, error: Exception) -> None:
        """Answer with an error."""
        self._is_done = True
        self.complete(error)

    def exception(self) -> None:
        """Do nothing: the answer has the error."""


async def frames_answer(out: PublishOut, stored_frames: Sequence[PublishedFrame]) -> Response:
    """Return the answer to published frames: ``out`` with a result for each, made in slices."""
    whole, time_slice = encode_json(out), TimeSlice()
    parts = [_NO_RESULTS[:-1]]
    for number, stored in enumerate(stored_frames):
        parts.append(b"," * bool(number) + encode_json(frame_result(stored)))
        if time_slice.is_over:
            await time_slice.next()
    parts.append(b"]" + whole.removeprefix(_NO_RESULTS))
    size_bytes = sum(map(len, parts))
    return Response(200, b"".join(parts) if size_bytes <= _JOINED_BYTES_MAX else parts, JSON)


def frame_result(stored: PublishedFrame) -> PublishedOut:
    """Return what is answered for a published frame."""
    return PublishedOut(
        partition=stored.partition,
        offset=stored.offset,
        timestamp=format_time_us(stored.time_us),
        count=stored.message_count,
        duplicate=stored.duplicate,
        duplicates=list(stored.left_out),
    )


@lru_cache(maxsize=1024)
def answer_tail(durability: str, partitions: int) -> bytes:
    """Return the end of an answer, after its only result."""
    whole = encode_json(PublishOut([], durability, partitions))
    return b"}]" + whole.removeprefix(_NO_RESULTS)
