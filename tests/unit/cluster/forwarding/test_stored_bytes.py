"""Nodes ask each other what the topics of principals hold."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from goq import limits
from goq.access.rule import Principal
from goq.cluster.forwarding.stored_bytes import STORED, StoredBytes
from goq.cluster.metadata.commands import FenceNode
from goq.cluster.metadata.state import MetadataState
from goq.errors import InvalidInput, NotAuthenticated, Unavailable
from tests.support.cluster.metadata.states import after, nodes
from tests.support.eventually import until

NAMES = ("n1", "n2", "n3")
TEAM = Principal("aaaaaaaa", "team", [], quotas={"stored_bytes": 1})


def find(principal_id: str) -> Principal:
    if principal_id != TEAM.id:
        raise NotAuthenticated("no such token")
    return TEAM


class World:
    """Nodes that hold what ``held`` says, and answer but for those in ``down``."""

    def __init__(self) -> None:
        self.held = dict.fromkeys(NAMES, 0)
        self.down: set[str] = set()
        self.fenced: set[str] = set()
        self.answers = asyncio.Event()
        self.answers.set()
        self.calls: list[str] = []
        self.sizes = {name: StoredBytes(name, self.state, self._call) for name in NAMES}
        for name in NAMES:
            self.sizes[name].attach(lambda _, name=name: self.held[name], find)

    def state(self) -> MetadataState:
        return after(nodes(len(NAMES)), *(FenceNode(name, 1) for name in sorted(self.fenced)))

    async def _call(self, node: str, path: str, body: bytes) -> bytes:
        assert path == STORED
        self.calls.append(node)
        await self.answers.wait()
        if node in self.down:
            raise Unavailable("nobody there")
        return b"".join(await self.sizes[node].handle_stored("n1", body))

    async def becomes(self, size_bytes: int) -> None:
        """Return when n1 counts just this elsewhere."""
        await until(lambda: self.sizes["n1"].elsewhere(TEAM) == size_bytes)


@pytest.fixture
def always_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUOTA_STORED_MS", 0)


@pytest.mark.usefixtures("always_asks")
def test_what_the_other_nodes_hold_is_counted_and_not_what_is_held_here() -> None:
    async def main() -> None:
        world = World()
        world.held.update(n1=1, n2=20, n3=300)
        assert world.sizes["n1"].elsewhere(TEAM) == 0  # nobody told yet
        await world.becomes(320)
        world.held.update(n2=50)
        await world.becomes(350)

    asyncio.run(main())


@pytest.mark.usefixtures("always_asks")
def test_a_node_that_does_not_answer_counts_with_what_it_told_until_it_is_not_up() -> None:
    async def main() -> None:
        world = World()
        world.held.update(n2=20, n3=300)
        await world.becomes(320)
        world.down.add("n2")
        world.held.update(n2=0, n3=301)
        await world.becomes(321)
        world.fenced.add("n2")
        assert world.sizes["n1"].elsewhere(TEAM) == 301

    asyncio.run(main())


def test_nodes_are_asked_once_in_a_while() -> None:
    async def main() -> None:
        world = World()
        for _ in range(10):
            world.sizes["n1"].elsewhere(TEAM)
            await asyncio.sleep(0)
        assert sorted(world.calls) == ["n2", "n3"]

    asyncio.run(main())


@pytest.mark.usefixtures("always_asks")
def test_nodes_that_answer_slowly_are_not_asked_again_meanwhile() -> None:
    async def main() -> None:
        world = World()
        world.answers.clear()
        for _ in range(10):
            world.sizes["n1"].elsewhere(TEAM)
            await asyncio.sleep(0)
        assert sorted(world.calls) == ["n2", "n3"]
        world.answers.set()
        world.held.update(n2=7)
        await world.becomes(7)

    asyncio.run(main())


def test_an_unknown_principal_holds_nothing_and_a_bad_question_is_refused() -> None:
    async def main() -> None:
        node = World().sizes["n2"]
        unknown = await node.handle_stored("n1", msgspec.msgpack.encode("bbbbbbbb"))
        assert msgspec.msgpack.decode(b"".join(unknown)) == 0
        for body in (b"", b"\xc1", msgspec.msgpack.encode(["aaaaaaaa"])):
            with pytest.raises(InvalidInput, match="n1 asked for no principal"):
                await node.handle_stored("n1", body)

    asyncio.run(main())


def test_a_node_that_asks_for_no_tokens_holds_nothing_of_anybody() -> None:
    async def main() -> None:
        node = StoredBytes("n1", World().state, World()._call)
        told = await node.handle_stored("n2", msgspec.msgpack.encode(TEAM.id))
        assert msgspec.msgpack.decode(b"".join(told)) == 0

    asyncio.run(main())
