"""A pass over older metadata touches nothing that was created since it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.state import (
    DeletedTopic,
    MetadataState,
    PartitionMetadata,
    TopicMetadata,
)
from goq.cluster.reconciler import Reconciler
from goq.errors import TopicExists
from goq.storage.catalog.rows import TopicRow

_PARTITION = PartitionMetadata(replicas=("n2",), leader="n2", in_sync=("n2",))
_TOPIC = TopicMetadata("t", 7, {"retention.age": "5d"}, (_PARTITION,))
_BEFORE = MetadataState(version=6)
_AFTER = MetadataState(version=7, topics={"t": _TOPIC})


class _Replicas:
    name = "n1"
    unassigned: tuple[()] = ()
    fetch_server = SimpleNamespace(set_throttle=lambda *_: None)

    async def in_thread(self, work: Callable[[], object]) -> object:
        return work()

    def apply(self, _assignments: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Broker:
    def __init__(self) -> None:
        self.topics = {"t": SimpleNamespace(id=_TOPIC.topic_id)}
        self.dropped: list[str] = []
        self.topic_admin = SimpleNamespace(drop=self._drop)

    async def _drop(self, name: str, topic_id: int) -> None:
        assert topic_id == _TOPIC.topic_id
        self.dropped.append(name)
        self.topics.pop(name, None)


@pytest.mark.parametrize(("newest", "dropped"), [(_AFTER, []), (_BEFORE, ["t"])])
def test_a_topic_created_during_a_pass_is_not_dropped_by_it(
    newest: MetadataState, dropped: list[str]
) -> None:
    broker: Any = _Broker()
    replicas: Any = _Replicas()
    durable: Any = SimpleNamespace(record=lambda _always: None)
    asyncio.run(Reconciler(broker, replicas, durable, lambda: newest).reconcile(_BEFORE))
    assert broker.dropped == dropped


def test_a_deleted_topic_is_remembered_until_the_metadata_forget_it() -> None:
    """Each topic that a node ever deleted took memory until it was restarted."""
    deleted = {"7": DeletedTopic("t", _TOPIC.topic_id, ("n1", "n2"))}
    broker: Any = _Broker()
    replicas: Any = _Replicas()
    durable: Any = SimpleNamespace(record=lambda _always: None)
    reconciler = Reconciler(broker, replicas, durable, lambda: _BEFORE)
    asyncio.run(reconciler.reconcile(replace(_BEFORE, deleted_topics=deleted)))
    assert reconciler.deleted == {_TOPIC.topic_id}
    asyncio.run(reconciler.reconcile(_BEFORE))
    assert reconciler.deleted == set()
    assert broker.dropped == ["t"]


def test_a_topic_that_this_node_has_not_opened_yet_is_not_changed_by_its_creation() -> None:
    proposed: list[object] = []

    async def propose(command: object) -> None:
        proposed.append(command)

    metadata: Any = SimpleNamespace(state=_AFTER, propose=propose)
    local: Any = None
    store = ReplicatedMetadataStore(local, metadata)
    with pytest.raises(TopicExists):
        asyncio.run(store.create_topic(TopicRow("t", 1, {})))
    assert proposed == []
