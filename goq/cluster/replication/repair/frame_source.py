"""A source of frames for damaged gaps: the other replicas, asked in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import NamedTuple

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


class CopiedRange(NamedTuple):
    """All frames that another replica has of the messages of one or more whole segments."""

    gap: Gap
    frames: list[FrameView]


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
                frames, _ = await self._read_from(node, request)
            except FramesMerged:
                are_merged = True
                continue
            except (GoqError, OSError, RepairDeferred) as error:
                failures.append(f"{node}: {error}")
                continue
            reached = frames[-1].header.end_offset if frames else gap.start_offset
            if reached == gap.end_offset:
                return frames
            if reached > gap.end_offset:
                are_merged = True
            else:
                longest = max(longest, frames, key=len)
        if are_merged:
            raise FramesMerged("the frames of another replica extend beyond the gap")
        if failures:
            raise RepairDeferred("; ".join(failures))
        return longest or None

    async def copy(
        self, node: str, replica: Replica, log: Log, end_offset: int
    ) -> AsyncIterator[CopiedRange]:
        """Yield the messages that a node has up to an offset, in ranges of whole segments here.

        Where that node's frames reach into the next segment, the range has that one too; compaction
        has merged them. All are from between two rewrites of that node, or openings of its log:
        together with what it had before a rewrite, a message could be back that a later one voids.
        Raises ``RepairDeferred``, ``FramesMerged``, and what the call raises.
        """
        start_offset, rewrites = log.start_offset, -1
        while start_offset < end_offset:
            frames: list[FrameView] = []
            reached = start_offset
            while (border := _border(log, start_offset, reached)) != reached:
                gap = Gap(reached, border)
                found, now = await self._read_from(node, await self._request(replica, 0, log, gap))
                if not found or found[-1].header.end_offset < border:
                    raise RepairDeferred(f"it has no frames of offsets {gap}")
                if start_offset > log.start_offset or frames:
                    _check_same(rewrites, now)
                rewrites = now
                frames += found
                reached = found[-1].header.end_offset
            yield CopiedRange(Gap(start_offset, border), frames)
            start_offset = border

    async def _request(self, replica: Replica, which: int, log: Log, gap: Gap) -> RepairRequest:
        before = await self._in_thread(partial(last_sound_frame, log, gap.start_offset))
        assert before is None or isinstance(before, SoundFrame)
        after = await self._in_thread(partial(first_sound_frame, log, gap.end_offset))
        assert after is None or isinstance(after, SoundFrame)
        return RepairRequest(replica.key, which, gap, after, before)

    async def _read_from(self, node: str, request: RepairRequest) -> tuple[list[FrameView], int]:
        """Return a node's frames from the start of a gap, as far as it has them.

        The last may reach beyond the gap. Also returns the mark of the node's last rewrite.
        """
        found: list[FrameView] = []
        rewrites = -1
        gap = rest = request.gap
        while rest.start_offset < gap.end_offset:
            answer, data = await self._call(node, msgspec.structs.replace(request, gap=rest))
            if not data:
                if answer.has_none:
                    break
                raise RepairDeferred("it does not know what belongs in the gap")
            frames = parse_frames(data)
            if frames[0].header.base_offset != rest.start_offset:
                raise FramesMerged
            if found:
                _check_same(rewrites, answer.rewrites)
            rewrites = answer.rewrites
            found += frames
            rest = Gap(frames[-1].header.end_offset, gap.end_offset)
        return found, rewrites


def _check_same(rewrites: int, now: int) -> None:
    if rewrites != now:
        raise RepairDeferred("its log was rewritten meanwhile")


def _border(log: Log, start_offset: int, reached: int) -> int:
    """Return the end of the first sealed segment that ends at ``reached`` or behind it."""
    for segment in log.segments[:-1]:
        if segment.end_offset > start_offset and segment.end_offset >= reached:
            return segment.end_offset
    raise RepairDeferred(f"its frames reach to offset {reached}, beyond the sealed segments here")
