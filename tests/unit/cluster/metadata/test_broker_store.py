"""The broker's changes of the metadata at a node that does not hear its Raft group."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
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


def store_after(silent_s: float) -> tuple[ReplicatedMetadataStore, list[object]]:
    """Return a store whose node has heard nothing for so long, and what it proposes."""
    proposed: list[object] = []

    async def propose(command: object) -> Accepted:
        proposed.append(command)
        return Accepted(2, "done")

    metadata: Any = SimpleNamespace(state=_STATE, propose=propose, silent_s=lambda: silent_s)
    local: Any = None
    return ReplicatedMetadataStore(local, metadata), proposed


@pytest.mark.parametrize("change", _CHANGES)
def test_a_node_that_is_cut_off_refuses_what_it_cannot_propose(
    change: _Change,
) -> None:
    store, proposed = store_after(limits.METADATA_CUT_OFF_S + 0.1)
    with pytest.raises(Unavailable) as refused:
        asyncio.run(change(store))
    assert refused.value.code == Unavailable.code  # not timed_out: it has no effect
    assert proposed == []


@pytest.mark.parametrize("silent_s", [0.0, limits.METADATA_CUT_OFF_S - 0.1, math.inf])
@pytest.mark.parametrize("change", _CHANGES)
def test_a_node_proposes_during_an_election_and_after_its_start(
    change: _Change, silent_s: float
) -> None:
    store, proposed = store_after(silent_s)
    asyncio.run(change(store))
    assert len(proposed) == 1
