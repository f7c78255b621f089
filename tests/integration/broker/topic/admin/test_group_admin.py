"""The groups of a topic: how they are stored, changed and deleted, by what remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.errors import InvalidInput
from tests.support.broker.harness import MemoryMetadata, broker_on, leased, options, publish, run


def test_settings_of_a_group_change_one_by_one(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await broker.group_admin.remember(topic, "g")
            assert metadata.group_settings["t", "g"] == {}
            await broker.group_admin.configure(topic, "g", {"max_attempts": 3})
            await broker.group_admin.configure(topic, "g", {"visibility_timeout": "9s"})
            await broker.group_admin.remember(topic, "g")
            settings = topic.settings_of("g")
            assert (settings.attempts_max, settings.visibility_timeout_ms) == (3, 9_000)
            assert topic.settings_of("h").attempts_max is None
            assert metadata.group_settings["t", "g"].keys() == {
                "max_attempts",
                "visibility_timeout",
            }
            with pytest.raises(InvalidInput):
                await broker.group_admin.configure(topic, "a b", {})
            with pytest.raises(InvalidInput):
                await broker.group_admin.remember(topic, "a b")

    run(test())


def test_a_deleted_group_has_no_settings_and_begins_anew(tmp_path: Path) -> None:
    async def test() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t", 1, {"delivery.ordering": "none"})
            await publish(topic, b"v")
            await broker.group_admin.configure(topic, "g", {"max_attempts": 3})
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"v")]
            await broker.group_admin.delete(topic, "g")
            assert "g" not in topic.groups
            assert ("t", "g") not in metadata.group_settings
            assert topic.settings_of("g").attempts_max is None
            assert leased(await topic.receiver.receive("g", options())) == [(0, 1, b"v")]

    run(test())


def test_a_group_takes_its_share_of_memory_in_each_partition(tmp_path: Path) -> None:
    async def test() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 3)
            before = broker.capacity.used_bytes
            assert before == 3 * limits.PARTITION_BYTES
            await broker.group_admin.remember(topic, "g")
            assert broker.capacity.used_bytes == before + 3 * limits.GROUP_BYTES

    run(test())
