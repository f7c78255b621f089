"""The streams that a consume loop has now, and the credit that they share.

No stream has more than its share of the prefetch window in the buffer. If the caller holds all
credit and wants more before it settles, the node is asked for more.
"""

from __future__ import annotations

import contextlib

from goq.client._async.consume.delivery_stream import DeliveryStream
from goq.client._async.consume.received_message import AsyncReceivedMessage
from goq.client._async.consume.settlement import Settler
from goq.client.leases.message_buffer import MessageBuffer
from goq.client.leases.prefetch import PrefetchWindow


class OpenStreams:
    """The streams of one loop; messages that are settled give credit back to theirs."""

    def __init__(
        self,
        settler: Settler,
        buffer: MessageBuffer[AsyncReceivedMessage],
        window: PrefetchWindow,
    ) -> None:
        self._settler = settler
        self._buffer = buffer
        self._window = window
        self._streams: list[DeliveryStream] = []

    def now(self) -> list[DeliveryStream]:
        """Return the streams that the loop has now."""
        return list(self._streams)

    @property
    def share(self) -> int:
        """How many messages each stream may bring ahead of the caller."""
        return self._window.share(len(self._streams))

    def add(self, stream: DeliveryStream) -> None:
        """Add a stream, which is not yet open."""
        self._streams.append(stream)
        self._settler.listeners.append(stream.settled)

    def remove(self, stream: DeliveryStream) -> None:
        """Remove a stream that has ended, if that was not done before."""
        with contextlib.suppress(ValueError):  # the other caller was first
            self._streams.remove(stream)
            self._settler.listeners.remove(stream.settled)

    async def grant(self, *, was_silent: bool) -> bool:
        """Grant credit where the caller has all of it, or is faster than it was.

        Return whether a node may still have no credit left.
        """
        streams = [stream for stream in self._streams if stream.place is not None]
        for stream in streams:
            share = self._window.share(len(streams))
            has_none = (
                stream.is_paused
                or stream.is_exhausted
                or (was_silent and (stream.may_be_exhausted or stream.in_flight))  # it lives
            )
            # what was counted before is_arriving was read is in the buffer, or arriving
            if stream.is_arriving or self._buffer:
                continue
            if has_none:
                await stream.more(share)
            elif self._window.is_larger(stream.window, len(streams)):
                await stream.resize(share, 0)
        return any(stream.may_be_exhausted for stream in streams)

    async def shrink(self) -> None:
        """Reduce the credit where the caller is less than half as fast as it was."""
        for stream in self.now():
            share = self.share
            if 2 * share <= stream.window and not stream.is_paused:
                held = self._buffer.held(stream.brought)
                await stream.resize(share, len(held))
