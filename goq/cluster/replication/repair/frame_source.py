"""A source of frames for damaged gaps: the other replicas, asked in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from goq.cluster.replication.follower import parse_frames
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse
from goq.cluster.replication.replica import Replica
from goq.errors import GoqError
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap, SoundFrame, first_sound_frame, last_sound_frame

RepairCall = Callable[[str, RepairRequest], Awaitable[tuple[RepairResponse, memoryview]]]
"""Calls a node by name; raises ``GoqError`` if it cannot be reached or does not answer."""
InThread = Callable[[Callable[[], object]], Awaitable[object]]


class RepairDeferred(Exception):
    """Not all replicas could answer; the repair is tried again later."""


class FramesMerged(Exception):
    """Another replica holds the messages of a gap in frames merged with others, by compaction."""


class FrameSource:
    """Finds frames of one log of a replica: ``which`` is 0 for messages, 1 for events."""

    def __init__(self, call: RepairCall, in_thread: InThread) -> None:
        self._call = call
        self._in_thread = in_thread

    async def find(
        self, replica: Replica, which: int, log: Log, gap: Gap
    ) -> list[FrameView] | None:
        """Return frames that fill a gap, or the first of them; None if no other replica has any.

        Raises ``RepairDeferred`` if some replica that may have more gave no answer, and
        ``FramesMerged``.
        """
        request = await self._request(replica, which, log, gap)
        if not replica.other_nodes:
            raise RepairDeferred("its assignment changed meanwhile")
        failures: list[str] = []
        are_merged = False
        longest: list[FrameView] = []
        for node in replica.other_nodes:
            try:
                frames = await self._read_from(node, request)
            except FramesMerged:
                are_merged = True
            except (GoqError, OSError, RepairDeferred) as error:
                failures.append(f"{node}: {error}")
            else:
                if _is_whole(frames, gap):
                    return frames
                longest = max(longest, frames, key=len)
        if are_merged:
            raise FramesMerged("the frames of another replica extend beyond the gap")
        if failures:
            raise RepairDeferred("; ".join(failures))
        return longest or None

    async def find_on(
        self, node: str, replica: Replica, which: int, log: Log, gap: Gap
    ) -> list[FrameView] | None:
        """Return the frames of one node that fill a gap; None if that node will never have them.

        Raises what :meth:`find` raises, and what the call raises.
        """
        frames = await self._read_from(node, await self._request(replica, which, log, gap))
        return frames if _is_whole(frames, gap) else None

    async def _request(self, replica: Replica, which: int, log: Log, gap: Gap) -> RepairRequest:
        before = await self._in_thread(partial(last_sound_frame, log, gap.start_offset))
        assert before is None or isinstance(before, SoundFrame)
        after = await self._in_thread(partial(first_sound_frame, log, gap.end_offset))
        assert after is None or isinstance(after, SoundFrame)
        return RepairRequest(replica.key, which, gap, after, before)

    async def _read_from(self, node: str, request: RepairRequest) -> list[FrameView]:
        """Return a node's frames from the start of a gap, as far as it has them."""
        found: list[FrameView] = []
        gap = rest = request.gap
        while rest.start_offset < gap.end_offset:
            answer, data = await self._call(node, msgspec.structs.replace(request, gap=rest))
            if not data:
                if answer.has_none:
                    return found
                raise RepairDeferred("it does not know what belongs in the gap")
            frames = parse_frames(data)
            if frames[0].header.base_offset != rest.start_offset:
                raise FramesMerged
            found += frames
            rest = Gap(frames[-1].header.end_offset, gap.end_offset)
        if rest.start_offset != gap.end_offset:
            raise FramesMerged
        return found


def _is_whole(frames: list[FrameView], gap: Gap) -> bool:
    return bool(frames) and frames[-1].header.end_offset == gap.end_offset
