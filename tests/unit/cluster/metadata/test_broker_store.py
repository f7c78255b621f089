"""The broker's changes of the metadata at a node that does not hear its Raft group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import MetadataState, TopicMetadata
from goq.errors import Unavailable
from goq.storage.catalog.rows import TopicRow

_STATE = MetadataState(version=1, topics={"orders": TopicMetadata("orders", 7, {}, ())})
_Change = Callable[[ReplicatedMetadataStore], Coroutine[None, None, object]]
_CHANGES: list[_Change] = [
    lambda store: store.put_group("orders", "new", {}),
    lambda store: store.create_topic(TopicRow("new", 1, {})),
]


def store_of(*, is_cut_off: bool) -> tuple[ReplicatedMetadataStore, list[object]]:
    """Return a store of a node, and what it proposes."""
    proposed: list[object] = []

    async def propose(command: object) -> Accepted:
        proposed.append(command)
        return Accepted(2, "done")

    metadata: Any = SimpleNamespace(state=_STATE, propose=propose, is_cut_off=is_cut_off)
    local: Any = None
    return ReplicatedMetadataStore(local, metadata), proposed


@pytest.mark.parametrize("change", _CHANGES)
def test_a_node_that_is_cut_off_refuses_what_it_cannot_propose(
    change: _Change,
) -> None:
    store, proposed = store_of(is_cut_off=True)
    with pytest.raises(Unavailable) as refused:
        asyncio.run(change(store))
    assert refused.value.code == Unavailable.code  # not timed_out: it has no effect
    assert proposed == []


@pytest.mark.parametrize("change", _CHANGES)
def test_a_node_that_hears_its_group_proposes(change: _Change) -> None:
    store, proposed = store_of(is_cut_off=False)
    asyncio.run(change(store))
    assert len(proposed) == 1
