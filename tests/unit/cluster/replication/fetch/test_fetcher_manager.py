"""The fetchers of a node, and what the streams with other nodes bring them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.cluster.replication.fetch import fetcher_manager
from goq.cluster.replication.fetch.fetcher_manager import FetcherManager
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    LogUpdate,
    PartitionKey,
    PartitionUpdate,
)
from goq.cluster.replication.push.protocol import (
    Push,
    PushHead,
    encode_begin,
    encode_push,
    encode_renew,
    encode_stored,
)
from goq.errors import InvalidFrame

KEY = PartitionKey("t", 1, 0)


class _Fetcher:
    """A fetcher that notes what it gets."""

    def __init__(self, _name: str, leader: str, fetch: Any, *_: object, **__: object) -> None:
        self.leader = leader
        self.fetch = fetch
        self.pushes: list[Push] = []
        self.followers: list[Any] = []
        self.streams: list[Any] = []
        self.removed: list[PartitionKey] = []
        self.is_stopped = False

    def add(self, follower: Any) -> None:
        self.followers.append(follower)

    def set_stream(self, stream: Any) -> None:
        self.streams.append(stream)

    def renewal(self) -> bytes:
        return self.leader.encode()

    def receive(self, push: Push) -> None:
        self.pushes.append(push)

    async def remove(self, key: PartitionKey) -> None:
        self.removed.append(key)

    async def stop(self) -> None:
        self.is_stopped = True


class _Server:
    """The side that answers the fetchers of others, or what notes the clocks of leaders."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, server: _Server) -> FetcherManager:
    monkeypatch.setattr(fetcher_manager, "Fetcher", _Fetcher)
    unused: Any = SimpleNamespace()
    given: Any = server
    return FetcherManager(
        "n1",
        unused,
        given,
        unused,
        unused,
        unused,
        turn=None,
        on_failure=lambda *_: None,
        on_expired_segment=lambda *_: None,
    )


def fetchers_of(manager: FetcherManager) -> dict[str, Any]:
    return dict(manager._fetchers)


def test_the_partitions_of_one_leader_share_a_fetcher(manager: FetcherManager) -> None:
    one, two, three = (SimpleNamespace(key=KEY) for _ in range(3))
    for leader, follower in (("n2", one), ("n3", two), ("n2", three)):
        manager.add(leader, follower)
    found = fetchers_of(manager)
    assert {leader: each.followers for leader, each in found.items()} == {
        "n2": [one, three],
        "n3": [two],
    }
    asyncio.run(manager.remove(KEY))
    assert [each.removed for each in found.values()] == [[KEY], [KEY]]
    asyncio.run(manager.close())
    assert all(each.is_stopped for each in found.values())


def test_a_fetcher_has_the_stream_with_its_leader_whichever_comes_first(
    manager: FetcherManager, server: _Server
) -> None:
    early, late, follower = object(), object(), SimpleNamespace(key=KEY)
    manager.on_stream_open("n2", early)
    assert manager.renewal("n2") == b""
    manager.add("n2", follower)
    manager.add("n3", follower)
    manager.on_stream_open("n3", late)
    manager.on_stream_close("n3")
    found = fetchers_of(manager)
    assert (found["n2"].streams, found["n3"].streams) == ([early], [None, late, None])
    assert (manager.renewal("n2"), manager.renewal("n4")) == (b"n2", b"")
    assert server.calls == [
        ("add_stream", "n2", early),
        ("add_stream", "n3", late),
        ("remove_stream", "n3"),
    ]


def test_what_a_node_says_of_pushes_to_it_goes_to_the_server(
    manager: FetcherManager, server: _Server
) -> None:
    manager.on_stream_message("n2", encode_begin(7))
    manager.on_stream_message("n2", encode_renew(7))
    manager.on_stream_message("n2", encode_stored(7, 3))
    assert server.calls == [("attach", "n2", 7), ("renew", "n2", 7), ("on_stored", "n2", 7, 3, ())]
    with pytest.raises(InvalidFrame):
        manager.on_stream_message("n2", b"?")


def updates_of_both_kinds() -> list[PartitionUpdate]:
    """Return the update of one partition with events, and of two without."""
    log, empty, none = LogUpdate(0, 0, 10), LogUpdate(0, 0, 0), LogOffsets(0, 0)
    return [
        PartitionUpdate(KEY, 2, none, empty, log),
        PartitionUpdate(PartitionKey("t", 1, 1), 2, none, log, empty),
        PartitionUpdate(PartitionKey("t", 1, 2), 2, none, log, None),
    ]


def test_a_push_goes_to_the_fetcher_of_its_node_and_tells_the_clock_of_that(
    manager: FetcherManager,
) -> None:
    clocks: Any = _Server()
    manager._leader_clocks = clocks
    manager.add("n2", SimpleNamespace(key=KEY))
    frames = b"x" * 30
    push = Push(PushHead(7, 1, 5_000, updates_of_both_kinds()), memoryview(frames))
    message = b"".join(encode_push(push.head, [frames]))
    manager.on_stream_message("n2", message)
    manager.on_stream_message("n3", message)  # nothing is fetched from there any more
    assert fetchers_of(manager)["n2"].pushes == [push]
    assert clocks.calls == [("note", "n2", 5_000, [KEY])]


def test_a_response_to_a_fetch_tells_the_clock_of_its_node(manager: FetcherManager) -> None:
    clocks: Any = _Server()
    manager._leader_clocks = clocks
    asked: list[tuple[str, FetchRequest]] = []
    response = FetchResponse(updates_of_both_kinds(), False, 6_000), memoryview(b"")

    async def fetch_from(node: str, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        asked.append((node, request))
        return response

    manager._fetch_from = fetch_from
    manager.add("n2", SimpleNamespace(key=KEY))
    request = FetchRequest("n1", 7, True, [], [], 10)
    assert asyncio.run(fetchers_of(manager)["n2"].fetch(request)) == response
    assert asked == [("n2", request)]
    assert clocks.calls == [("note", "n2", 6_000, [KEY])]
