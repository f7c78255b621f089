"""The streams of the clients of a cluster node, each made of a stream of each leader."""

from __future__ import annotations

from collections.abc import Sequence

from goq.api.codec.leased import LeaseReturner
from goq.api.codec.negotiation import wants_frames
from goq.api.codec.receive_request import granted, stream_credit
from goq.api.codec.request import json_body
from goq.api.gateway.fanout import Fanout
from goq.api.gateway.merged_stream import MergedStream
from goq.api.route import FRAMES, NDJSON
from goq.api.routing_policy import STREAM_ID, UNBUFFERED
from goq.api.schemas.groups import Receive, StreamGrant
from goq.errors import InvalidInput
from goq.http.message import LiveStream, Request, Response


class StreamGateway:
    """Merged streams of the clients of one node."""

    def __init__(self, fanout: Fanout, leases: LeaseReturner) -> None:
        self._fanout = fanout
        self._leases = leases
        self._streams: dict[str, MergedStream] = {}

    async def open(self, request: Request, values: Sequence[str], asked: Receive) -> Response:
        """Return the streaming answer, or the answer that refuses it."""
        credit = stream_credit(asked)
        frames = wants_frames(request)
        if frames and asked.limit is not None:
            raise InvalidInput(
                "a stream of frames of several nodes has no limit; end it when there is enough",
                field="limit",
            )
        merged = MergedStream(
            self._fanout, self._leases, request, values, asked, credit, frames=frames
        )
        refusal = await merged.open()
        if refusal is not None:
            return refusal
        self._streams[merged.id] = merged
        merged.on_close = lambda: self._streams.pop(merged.id, None)
        live = LiveStream(merged.records(), merged.heartbeat, merged.aclose)
        headers = {STREAM_ID: merged.id, UNBUFFERED: "no"}
        return Response(200, live, FRAMES if frames else NDJSON, headers)

    async def change(self, request: Request, values: Sequence[str]) -> Response:
        """Grant a stream more messages, or end it."""
        merged = self._streams.get(values[2])
        if merged is None or merged.values != tuple(values[:2]):
            return await self._fanout.answer_here(request)
        if request.method == "DELETE":
            merged.end()
            return Response(204)
        return await merged.grant(*granted(json_body(request, StreamGrant)))

    def end_all(self) -> None:
        """End all streams because the node is stopping."""
        for merged in list(self._streams.values()):
            merged.end()
