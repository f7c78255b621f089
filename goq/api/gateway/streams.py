"""One stream made of a stream of each leader of the topic.

Each leader gets a share of the maximum in flight, at least one message. The streams belong to the
client's connection: when it closes, they close, and messages in flight are ready again, as on a
standalone node. When leaders change or a stream breaks, new streams are opened.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from goq.api.codec.leased import ReleaseLeases, read_frames, receipt_of
from goq.api.codec.messages import json_response
from goq.api.codec.receive_request import SESSION_ID, granted, parse_session_id, stream_credit
from goq.api.codec.request import json_body, wants_frames
from goq.api.gateway.fanout import Fanout, copy_request, decode_document
from goq.api.router import FRAMES, NDJSON
from goq.api.routing_policy import STREAM_ID, UNBUFFERED
from goq.api.schemas.groups import Receive, StreamGrant, StreamOut
from goq.errors import GoqError, InvalidInput, NotLeader
from goq.http.message import Item, LiveStream, Request, Response

_QUEUED_MAX = 16
_RETRY_S = 1.0
_SIZE_BYTES = 4


class StreamGateway:
    """Merged streams of the clients of one node."""

    def __init__(self, fanout: Fanout, release: ReleaseLeases) -> None:
        self.fanout = fanout
        self.release = release
        self.streams: dict[str, _MergedStream] = {}

    async def open(self, request: Request, values: Sequence[str], asked: Receive) -> Response:
        """Return the streaming answer, or the answer that refuses it."""
        credit = stream_credit(asked)
        frames = wants_frames(request)
        if frames and asked.limit is not None:
            raise InvalidInput(
                "a stream of frames of several nodes has no limit; end it when there is enough",
                field="limit",
            )
        merged = _MergedStream(self, request, values, asked, credit, frames=frames)
        refusal = await merged.open()
        if refusal is not None:
            return refusal
        live = LiveStream(merged.run(), merged.heartbeat)
        headers = {STREAM_ID: merged.id, UNBUFFERED: "no"}
        return Response(200, live, FRAMES if frames else NDJSON, headers)

    async def change(self, request: Request, values: Sequence[str]) -> Response:
        """Grant a stream more messages, or end it."""
        merged = self.streams.get(values[2])
        if merged is None or merged.values != tuple(values[:2]):
            return await self.fanout.answer_here(request)
        if request.method == "DELETE":
            merged.end()
            return Response(204)
        return await merged.grant(*granted(json_body(request, StreamGrant)))

    def end_all(self) -> None:
        """End all streams because the node is stopping."""
        for merged in list(self.streams.values()):
            merged.end()


class _MergedStream:
    """One client stream and the node streams that feed it."""

    def __init__(
        self,
        gateway: StreamGateway,
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
        self._gateway = gateway
        self._fanout = gateway.fanout
        self._request = request
        self._asked = asked
        self._frames = frames
        self._credit = credit
        self._left = asked.limit
        self._ids: dict[str | None, str] = {}
        self._readers: dict[str | None, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED_MAX)
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = False
        self._is_served = False
        """Whether one node has delivered as many messages as are wanted in all."""
        self._ending: asyncio.Task[None] | None = None

    async def open(self) -> Response | None:
        """Open a stream at this node and at each leader; return the refusal of one, if any.

        A leader that cannot be reached, or that says that it leads no more, is asked again later.
        """
        urls = self._fanout.partition_leaders.leader_urls(self.values[0])
        shares = _shares(self._credit, len(urls))
        results = await asyncio.gather(
            *(self._open(url, share) for url, share in zip(urls, shares, strict=True)),
            return_exceptions=True,
        )
        refusals = [each for each in results if isinstance(each, Response)]
        errors = [each for each in results if isinstance(each, BaseException)]
        wrong = [each for each in errors if not isinstance(each, GoqError)]
        is_mistake = any(
            400 <= each.status < 500 and each.status != NotLeader.http_status for each in refusals
        )
        # A node's stream may have reached its limit and ended by now.
        is_open_here = any(
            url is None and each is None for url, each in zip(urls, results, strict=True)
        )
        if wrong or is_mistake or not is_open_here:
            await self._close()
            if wrong:
                raise wrong[0]
            if refusals:
                return refusals[0]
            raise errors[0]
        self._gateway.streams[self.id] = self
        return None

    async def _open(self, url: str | None, share: int) -> Response | None:
        """Open a stream at one node; return its answer if that is not a stream."""
        fields = {
            "stream": True,
            "max_in_flight": share,
            "limit": self._asked.limit,
            "visibility": self._asked.visibility,
            "consumer": self._asked.consumer,
        }
        session = {SESSION_ID.lower(): parse_session_id(self._request) or self.id}
        answer = await self._fanout.ask(
            url,
            copy_request(self._request, headers=session, body=msgspec.json.encode(fields)),
        )
        body = answer.body
        if answer.status != 200 or not isinstance(body, AsyncIterator):
            return answer
        if isinstance(body, LiveStream):
            self.heartbeat = body.heartbeat
        headers = {name.lower(): value for name, value in answer.headers.items()}
        self._ids[url] = headers.get(STREAM_ID.lower(), "")
        self._readers[url] = asyncio.ensure_future(self._read(url, body))
        return None

    async def _read(self, url: str | None, body: Any) -> None:
        """Queue the records of one node until its stream ends or breaks."""
        count = 0
        try:
            with suppress(GoqError):
                async for record in _records(body, frames=self._frames):
                    count += 1
                    if count == self._asked.limit:
                        self._is_served = True
                    await self._queue.put(record)
        finally:
            del self._readers[url], self._ids[url]
            await body.aclose()
            if not self._lost.done():
                self._lost.set_result(None)
        await self._queue.put(None)

    async def run(self) -> AsyncGenerator[Item, None]:
        """Yield records of any node; release leases beyond the limit."""
        following = asyncio.ensure_future(self._follow())
        try:
            while True:
                record = await self._queue.get()
                if record is None:
                    if self._ended and not self._readers and self._queue.empty():
                        return
                    continue
                if self._left is not None:
                    if self._left <= 0:
                        receipts = [receipt_of(record)]
                        topic, group = self.values
                        await self._gateway.release(topic, group, receipts)
                        continue
                    self._left -= 1
                    if self._left == 0:
                        self.end()
                yield record
        finally:
            self._gateway.streams.pop(self.id, None)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._close()

    async def _follow(self) -> None:
        """Open streams at new leaders."""
        leaders = self._fanout.partition_leaders
        while not (self._ended or self._is_served):
            change = leaders.next_change()
            self._lost = asyncio.get_running_loop().create_future()
            urls = leaders.leader_urls(self.values[0])
            for url in [url for url in urls if url not in self._readers]:
                share = _shares(self._credit, len(urls))[-1]
                with suppress(GoqError):
                    await self._open(url, share)
            is_whole = all(url in self._readers for url in urls)
            await asyncio.wait(
                {change, self._lost},
                timeout=None if is_whole else _RETRY_S,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def grant(self, more: int, maximum: int | None) -> Response:
        """Grant ``more`` messages, or a ``maximum`` in flight, shared among the nodes."""
        parts = list(self._ids.items())
        field = "more" if maximum is None else "max_in_flight"
        shares = _shares(more if maximum is None else maximum, max(1, len(parts)))
        found = []
        for (url, stream_id), share in zip(parts, shares, strict=False):
            body = msgspec.json.encode({field: share if maximum is None else min(share, maximum)})
            with suppress(GoqError):
                answer = await self._fanout.ask(url, self._about(stream_id, "PATCH", body))
                if answer.status == 200:
                    found.append(decode_document(answer))
        credit = sum(each["max_in_flight"] for each in found)
        return json_response(StreamOut(self.id, credit, sum(each["in_flight"] for each in found)))

    def end(self) -> None:
        """End delivery at all nodes; the consumer keeps the messages in flight."""
        if not self._ended:
            self._ended = True
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        for url, stream_id in list(self._ids.items()):
            with suppress(GoqError):
                await self._fanout.ask(url, self._about(stream_id, "DELETE", b""))
        await self._queue.put(None)

    def _about(self, stream_id: str, method: str, body: bytes) -> Request:
        topic, group = self.values
        path = f"/v1/topics/{topic}/groups/{group}/streams/{stream_id}"
        headers = {"content-type": "application/json", "accept": "application/json"}
        return copy_request(
            self._request, method=method, path=path, query="", body=body, headers=headers
        )

    async def _close(self) -> None:
        """Close the open node streams."""
        readers = list(self._readers.values())
        if self._ending is not None:
            readers.append(self._ending)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


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
