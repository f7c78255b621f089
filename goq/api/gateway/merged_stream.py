"""One stream of a client, made of a stream of each leader of the topic: its *parts*.

Each leader gets a share of the maximum in flight, at least one message. The parts belong to the
client's connection: when it closes, they close, and messages in flight are ready again, as on a
standalone node. When leaders change or a part breaks, new parts are opened; first those that are
open give up what exceeds the smaller share.

A part that was open and ends is opened *again*. Its node refuses that once a newer stream of the
client's session is there, perhaps through another node: then this one is over, as after any other
refusal.

A leader keeps the credit of expired leases until the consumer shows life, which it may do at other
leaders only. A part that delivers more than it may have in flight has seen settlements since: then
the other parts are told that the consumer lives.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from goq.api.codec.leased import LeaseReturner, read_frames, receipt_of
from goq.api.codec.messages import json_response
from goq.api.codec.receive_request import SESSION_ID, parse_session_id
from goq.api.gateway.fanout import Fanout, copy_request, decode_document
from goq.api.routing_policy import ALIVE, MERGED_STREAM, REOPENED, STREAM_ID, Document
from goq.api.schemas.groups import Receive, StreamOut
from goq.broker.topic.push_streams import CONNECTION_CLOSED
from goq.errors import GoqError, NotLeader
from goq.http.message import Item, LiveStream, OwnedStream, Request, Response

_QUEUED_MAX = 16
_RETRY_S = 1.0
_LIFE_S = 1.0  # at least, between two times that parts are told of life
_END_S = 2.0  # for a node to end its part
_REFUSALS = frozenset({400, 401, 403, 409})
_SIZE_BYTES = 4


class _Part:
    """The stream of one node, with a ``share`` of the credit; ``reader`` queues its records."""

    def __init__(self, url: str | None, stream_id: str, body: OwnedStream, share: int) -> None:
        self.url = url
        self.id = stream_id
        self.body = body
        self.share = share
        self.record_count = 0
        """The records since the share was set, or since other parts were told of life."""
        self.reader: asyncio.Task[None]

    async def aclose(self) -> None:
        """Break it, whether its reader has begun or not."""
        self.reader.cancel()
        await asyncio.wait([self.reader])
        await self.body.aclose()


class MergedStream:
    """One client stream, and the parts that feed it; the caller must close it.

    ``on_close`` is called when it is closed.
    """

    def __init__(
        self,
        fanout: Fanout,
        leases: LeaseReturner,
        request: Request,
        values: Sequence[str],
        asked: Receive,
        credit: int,
        *,
        frames: bool,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.values = values[0], values[1]
        self.heartbeat = b"\n"
        self.on_close: Callable[[], object] = lambda: None
        self._fanout = fanout
        self._leases = leases
        self._request = request
        self._asked = asked
        self._frames = frames
        self._credit = credit
        """The maximum in flight; 0 while the client has paused the stream."""
        self._left = asked.limit
        self._parts: dict[str | None, _Part] = {}
        self._opened_s: dict[str | None, float] = {}
        """When a node was given its part last."""
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED_MAX)
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = False
        self._is_refused = False
        self._is_served = False
        """Whether one node has delivered as many messages as are wanted in all."""
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._told_s = -inf

    async def open(self) -> Response | None:
        """Open a part at this node and at each leader; return the refusal of one, if any.

        A leader that cannot be reached, or that says that it leads no more, is asked again later.
        """
        urls = self._fanout.partition_leaders.leader_urls(self.values[0])
        shares = _shares(self._credit, len(urls))
        is_open = False
        try:
            results = await asyncio.gather(
                *(self._open(url, share) for url, share in zip(urls, shares, strict=True)),
                return_exceptions=True,
            )
            refusals = [each for each in results if isinstance(each, Response)]
            errors = [each for each in results if isinstance(each, BaseException)]
            wrong = [each for each in errors if not isinstance(each, GoqError)]
            is_mistake = any(
                400 <= each.status < 500 and each.status != NotLeader.http_status
                for each in refusals
            )
            # A node's stream may have reached its limit and ended by now.
            is_open_here = any(
                url is None and each is None for url, each in zip(urls, results, strict=True)
            )
            if wrong:
                raise wrong[0]
            is_open = is_open_here and not is_mistake
        finally:
            if not is_open:
                await self.aclose()
        if is_open:
            self._following = asyncio.ensure_future(self._follow())
            self._following.add_done_callback(lambda _: self._nudge())
            return None
        if refusals:
            return refusals[0]
        raise errors[0]

    async def _open(self, url: str | None, share: int) -> Response | None:
        """Open a part at one node; return its answer if that is not a stream."""
        fields = {
            "stream": True,
            "max_in_flight": share,
            "limit": self._asked.limit,
            "visibility": self._asked.visibility,
            "consumer": self._asked.consumer,
        }
        session = parse_session_id(self._request) or self.id
        headers = {SESSION_ID.lower(): session, MERGED_STREAM: self.id}
        if url in self._opened_s:
            headers[REOPENED] = "true"
        body = msgspec.json.encode(fields)
        answer = await self._fanout.ask(
            url, copy_request(self._request, headers=headers, body=body)
        )
        stream = answer.stream
        if answer.status != 200 or not isinstance(stream, OwnedStream):
            return answer
        if isinstance(stream, LiveStream):
            self.heartbeat = stream.heartbeat
        ids = {name.lower(): value for name, value in answer.headers.items()}
        part = self._parts[url] = _Part(url, ids.get(STREAM_ID.lower(), ""), stream, share)
        part.reader = asyncio.ensure_future(self._read(part))
        part.reader.add_done_callback(lambda _: self._on_part_end(url))
        self._opened_s[url] = asyncio.get_running_loop().time()
        if self._ended:
            await self._end_part(part)
        return None

    async def _read(self, part: _Part) -> None:
        """Queue the records of a part until it ends or breaks."""
        count = 0
        try:
            with suppress(GoqError):
                async for record in _records(part.body, frames=self._frames):
                    count += 1
                    if count == self._asked.limit:
                        self._is_served = True
                    await self._queue.put(record)
                    part.record_count += 1
                    if part.record_count > part.share:
                        self._on_life(part)
        finally:
            await part.body.aclose()

    def _on_life(self, seen_by: _Part) -> None:
        """Tell the other parts that the consumer lives, unless they were told a moment ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s < _LIFE_S or (self._telling and not self._telling.done()):
            return
        self._told_s = now_s
        for part in self._parts.values():
            part.record_count = 0
        others = [part for part in self._parts.values() if part is not seen_by]
        self._telling = asyncio.ensure_future(self._tell_of_life(others))

    async def _tell_of_life(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            body = msgspec.json.encode({"max_in_flight": part.share})  # for an earlier version
            telling = copy_request(self._about(part, "PATCH", body), headers={ALIVE: "true"})
            with suppress(GoqError):
                await self._fanout.ask(part.url, telling)

    def _on_part_end(self, url: str | None) -> None:
        del self._parts[url]
        self._wake_following()
        self._nudge()

    async def records(self) -> AsyncGenerator[Item, None]:
        """Yield records of any node; release leases beyond the limit."""
        while not self._is_over():
            record = await self._queue.get()
            if record is None:
                continue
            if self._left is not None:
                if self._left <= 0:
                    await self._leases.return_leases(*self.values, [receipt_of(record)])
                    continue
                self._left -= 1
                if self._left == 0:
                    self.end()
            yield record

    def _is_over(self) -> bool:
        """Return whether no record comes any more."""
        if self._is_refused:
            return True
        is_left = self._following is not None and self._following.done()
        return self._ended and is_left and not self._parts and self._queue.empty()

    def _nudge(self) -> None:
        """Have :meth:`records` look whether the stream is over."""
        with suppress(asyncio.QueueFull):  # then it looks after each record
            self._queue.put_nowait(None)

    def _wake_following(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)

    async def _follow(self) -> None:
        """Open parts at new leaders, and again where they ended, as long as the topic is there."""
        leaders, loop = self._fanout.partition_leaders, asyncio.get_running_loop()
        while not (self._ended or self._is_served or self._is_refused):
            change = leaders.next_change()
            self._changed = loop.create_future()
            try:
                urls = leaders.leader_urls(self.values[0])
            except GoqError:
                self._is_refused = True
                break
            await self._open_more([url for url in urls if self._lacks(url, loop.time())])
            is_whole = not self._credit or all(url in self._parts for url in urls)
            if not self._is_refused:
                await asyncio.wait(
                    {change, self._changed},
                    timeout=None if is_whole else _RETRY_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        if self._is_refused:
            await self._close_parts()

    def _lacks(self, url: str | None, now_s: float) -> bool:
        """Return whether a node is to be given a part now; one that ended at once has to wait."""
        return url not in self._parts and now_s - self._opened_s.get(url, -inf) >= _RETRY_S

    async def _open_more(self, urls: Sequence[str | None]) -> None:
        """Open parts at more nodes, once all shares together fit the maximum in flight."""
        if self._credit:
            await self._lower_shares(len(urls))
        for url in urls:
            if self._credit and not (self._ended or self._is_refused):
                await self._open_later(url, self._share_among(len({*self._parts, *urls})))

    async def _lower_shares(self, more: int) -> None:
        """Lower the shares of the open parts if they leave too little for so many more."""
        parts = list(self._parts.values())
        share = self._share_among(len(parts) + more)
        if sum(part.share for part in parts) + more * share > self._credit:
            for part in parts:
                if part.share > share:
                    await self._grant_part(part, "max_in_flight", share)

    def _share_among(self, parts: int) -> int:
        return _shares(self._credit, max(1, parts))[-1]

    async def _open_later(self, url: str | None, share: int) -> None:
        """Open a part at a node; note if that refuses it for good."""
        with suppress(GoqError):
            answer = await self._open(url, share)
            self._is_refused |= answer is not None and answer.status in _REFUSALS

    async def grant(self, more: int, maximum: int | None) -> Response:
        """Grant ``more`` messages, or a ``maximum`` in flight, shared among the nodes."""
        parts = list(self._parts.values())
        field = "more" if maximum is None else "max_in_flight"
        shares = _shares(more if maximum is None else maximum, max(1, len(parts)))
        found = []
        for part, share in zip(parts, shares, strict=False):
            amount = share if maximum is None else min(share, maximum)
            granted = await self._grant_part(part, field, amount)
            if granted is not None:
                found.append(granted)
        credit = sum(each["max_in_flight"] for each in found)
        self._credit = (credit or self._credit or more) if maximum is None else maximum
        self._wake_following()
        return json_response(StreamOut(self.id, credit, sum(each["in_flight"] for each in found)))

    async def _grant_part(self, part: _Part, field: str, amount: int) -> Document | None:
        """Grant a part more, or a maximum; return what it has then, None if it cannot be asked."""
        body = msgspec.json.encode({field: amount})
        with suppress(GoqError):
            answer = await self._fanout.ask(part.url, self._about(part, "PATCH", body))
            if answer.status == 200:
                granted = decode_document(answer)
                part.share, part.record_count = granted["max_in_flight"], 0
                return granted
        return None

    def end(self) -> None:
        """End delivery at all nodes; the consumer keeps the messages in flight."""
        if not self._ended:
            self._ended = True
            self._wake_following()
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await asyncio.gather(*map(self._end_part, list(self._parts.values())))
        if self._following is not None:
            await asyncio.wait([self._following], timeout=_END_S)
            self._following.cancel()

    async def _end_part(self, part: _Part) -> None:
        """Have a node end its part after what it sent; break the part if the node does not."""
        with suppress(GoqError, TimeoutError):
            async with asyncio.timeout(_END_S):
                answer = await self._fanout.ask(part.url, self._about(part, "DELETE", b""))
            if answer.status < 500:
                return
        await part.aclose()

    def _about(self, part: _Part, method: str, body: bytes) -> Request:
        topic, group = self.values
        path = f"/v1/topics/{topic}/groups/{group}/streams/{part.id}"
        headers = {"content-type": "application/json", "accept": "application/json"}
        return copy_request(
            self._request, method=method, path=path, query="", body=body, headers=headers
        )

    async def aclose(self) -> None:
        """Close the parts: their messages in flight are ready again.

        After the limit the client keeps what it got; what leaders had leased beyond is released.
        """
        self.on_close()
        if self._left == 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await _read_to_end(self.records())
        own = self._following, self._ending, self._telling
        tasks = [task for task in own if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_kept = self._ended
        await self._close_parts()
        if not is_kept:  # a part's node may die before that is safe, or be dead
            self._leases.return_held(*self.values, self.id, CONNECTION_CLOSED)

    async def _close_parts(self) -> None:
        await asyncio.gather(*(part.aclose() for part in list(self._parts.values())))


def _shares(amount: int, parts: int) -> list[int]:
    """Return an amount in equal shares, each at least one."""
    base, rest = divmod(amount, parts)
    return [max(1, base + (number < rest)) for number in range(parts)]


async def _records(body: AsyncIterator[Any], *, frames: bool) -> AsyncGenerator[bytes, None]:
    """Yield whole lines, or whole deliveries in frames, without heartbeats."""
    buffer = bytearray()
    async for item in body:
        buffer += b"".join(item) if isinstance(item, list | tuple) else item
        while (end := _end_of_record(buffer, frames=frames)) is not None:
            record = bytes(buffer[:end])
            del buffer[:end]
            if not _is_heartbeat(record, frames=frames):
                yield record


async def _read_to_end(records: AsyncIterator[Item]) -> None:
    async for _ in records:
        pass


def _is_heartbeat(record: bytes, *, frames: bool) -> bool:
    if not frames:
        return record == b"\n"
    preface = read_frames(record[_SIZE_BYTES:]).preface
    return preface is not None and not preface["deliveries"]


def _end_of_record(buffer: bytearray, *, frames: bool) -> int | None:
    if not frames:
        found = buffer.find(b"\n")
        return None if found < 0 else found + 1
    if len(buffer) < _SIZE_BYTES:
        return None
    end = _SIZE_BYTES + int.from_bytes(buffer[:_SIZE_BYTES], "little")
    return end if len(buffer) >= end else None
