"""A node remembers of which topics it has whatever it said it has, and forgets when in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.cluster.membership.durable_topics import FILE_NAME, DurableTopics
from tests.support.storage.disk import SimulatedDisk

TOPICS = Path("/data/topics")


@pytest.fixture
def disk() -> SimulatedDisk:
    found = SimulatedDisk()
    found.make_dir(TOPICS)
    return found


def test_what_was_always_synced_is_kept_over_a_power_cut(disk: SimulatedDisk) -> None:
    DurableTopics(disk, TOPICS).record({1: True, 2: False})
    disk.crash(power=True)
    assert DurableTopics(disk, TOPICS).ids == {1}


def test_what_was_once_synced_later_is_kept_no_more_also_when_it_is_synced_at_once_again(
    disk: SimulatedDisk,
) -> None:
    kept = DurableTopics(disk, TOPICS)
    for always in (True, False, True):
        kept.record({1: always})
    assert kept.ids == frozenset()
    again = DurableTopics(disk, TOPICS)
    again.record({1: True})
    assert again.ids == frozenset()


def test_a_topic_that_is_gone_is_forgotten_and_a_new_one_is_kept(disk: SimulatedDisk) -> None:
    kept = DurableTopics(disk, TOPICS)
    kept.record({1: True, 2: False})
    kept.record({3: True})
    assert kept.ids == {3}


def test_a_folder_with_replicas_that_remembers_nothing_keeps_nothing_of_what_there_is(
    disk: SimulatedDisk,
) -> None:
    disk.make_dir(TOPICS / "orders")
    kept = DurableTopics(disk, TOPICS)
    assert kept.ids == frozenset()
    kept.record({1: True})
    assert kept.ids == frozenset()
    kept.record({1: True, 2: True})
    assert kept.ids == {2}


def test_a_file_that_cannot_be_read_remembers_nothing(disk: SimulatedDisk) -> None:
    DurableTopics(disk, TOPICS).record({1: True})
    disk.replace(TOPICS.parent / FILE_NAME, b"{")
    kept = DurableTopics(disk, TOPICS)
    kept.record({1: True})
    assert kept.ids == frozenset()
