"""The fetchers of a node, one for each node that leads partitions followed here, and their streams.

A fetcher is made when the first partition follows a leader, and stays. A stream with a node carries
both directions: what its leader pushes here goes to the fetcher, what it says of pushes from here
goes to the server of fetches. What arrives from a leader also tells how its clock differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor

from goq.broker.log.commit_turn import CommitTurn
from goq.cluster.replication.fetch.fetcher import Fetcher
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader_clocks import LeaderClocks
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    PartitionKey,
    PartitionUpdate,
)
from goq.cluster.replication.push.protocol import (
    Begin,
    PeerStream,
    Renew,
    Stored,
    decode_message,
)
from goq.cluster.replication.segment_manifest import SegmentManifest

FetchFrom = Callable[[str, FetchRequest], Awaitable[tuple[FetchResponse, memoryview]]]
"""Fetches from a node, by name."""


class FetcherManager:
    """The fetchers of the node ``name``; ``server`` answers the fetchers of others.

    ``on_failure`` is called with a partition that cannot be stored here, and the error.
    ``on_expired_segment`` is called with a follower that has segments its leader has deleted.
    """

    def __init__(
        self,
        name: str,
        fetch_from: FetchFrom,
        server: FetchServer,
        leader_clocks: LeaderClocks,
        executor: Executor,
        manifest: SegmentManifest,
        *,
        turn: CommitTurn | None,
        on_failure: Callable[[PartitionKey, Exception], None],
        on_expired_segment: Callable[[FollowerReplica], None],
    ) -> None:
        self._name = name
        self._fetch_from = fetch_from
        self._server = server
        self._leader_clocks = leader_clocks
        self._executor = executor
        self._manifest = manifest
        self._turn = turn
        self._on_failure = on_failure
        self._on_expired_segment = on_expired_segment
        self._large_store = asyncio.Lock()
        self._streams: dict[str, PeerStream] = {}
        self._fetchers: dict[str, Fetcher] = {}

    def add(self, leader: str, follower: FollowerReplica) -> None:
        """Fetch a partition from its leader."""
        fetcher = self._fetchers.get(leader)
        if fetcher is None:

            async def fetch(request: FetchRequest) -> tuple[FetchResponse, memoryview]:
                response = await self._fetch_from(leader, request)
                head = response[0]
                self._leader_clocks.note(leader, head.clock_ms, _with_events(head.updates))
                return response

            fetcher = self._fetchers[leader] = Fetcher(
                self._name,
                leader,
                fetch,
                self._executor,
                self._manifest,
                on_failure=self._on_failure,
                on_expired_segment=self._on_expired_segment,
                turn=self._turn,
                large_store=self._large_store,
            )
            fetcher.set_stream(self._streams.get(leader))
        fetcher.add(follower)

    async def remove(self, key: PartitionKey) -> None:
        """Stop fetching a partition; on return nothing more is stored in it."""
        for fetcher in list(self._fetchers.values()):
            await fetcher.remove(key)

    async def close(self) -> None:
        """Stop all fetchers."""
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

    def on_stream_open(self, node: str, stream: PeerStream) -> None:
        """Push and be pushed over a stream with another node, instead of one before."""
        self._streams[node] = stream
        self._server.add_stream(node, stream)
        fetcher = self._fetchers.get(node)
        if fetcher is not None:
            fetcher.set_stream(stream)

    def on_stream_close(self, node: str) -> None:
        """End what the stream with a node carried: fetches go on."""
        self._streams.pop(node, None)
        self._server.remove_stream(node)
        fetcher = self._fetchers.get(node)
        if fetcher is not None:
            fetcher.set_stream(None)

    def renewal(self, node: str) -> bytes:
        """Return the message that renews the session with a node, empty if there is none."""
        fetcher = self._fetchers.get(node)
        return b"" if fetcher is None else fetcher.renewal()

    def on_stream_message(self, node: str, data: bytes) -> None:
        """Take a message of another node; raise ``InvalidFrame`` if it is not one."""
        message = decode_message(data)
        if isinstance(message, Stored):
            self._server.on_stored(node, *message)
        elif isinstance(message, Begin):
            self._server.attach(node, message.session)
        elif isinstance(message, Renew):
            self._server.renew(node, message.session)
        else:
            fetcher = self._fetchers.get(node)
            if fetcher is not None:
                updates = message.head.updates
                self._leader_clocks.note(node, message.head.clock_ms, _with_events(updates))
                fetcher.receive(message)


def _with_events(updates: Iterable[PartitionUpdate]) -> list[PartitionKey]:
    """Return the partitions of which events come: a push of messages has an update without any."""
    return [each.key for each in updates if each.events is not None and each.events.frame_bytes]
