"""Retention on replicas, in simulated time: what one deletes all delete, and each archives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from goq import limits
from goq.cluster.replication.archive_sync import is_covered
from goq.config.topic import TopicSettings
from goq.frame.view import FrameView
from goq.storage.log.segment_files import list_segments
from tests.support.cluster.replication.loop import SimExecutor
from tests.support.cluster.replication.retention import (
    FOLDER,
    LOGS,
    archive_of,
    archived_rows,
    check_manifest,
    whole_log,
)
from tests.support.cluster.replication.world import KEY, NAMES, World
from tests.support.effort import first_of

SETTINGS = replace(
    TopicSettings(),
    segment_bytes=2048,
    retention_bytes=3000,
    protect_unread=True,
    visibility_timeout_ms=2000,
    attempts_max=None,
)


class RetentionWorld(World):
    """Nodes whose topic deletes what is old, archived or not."""

    def __init__(self, seed: int, *, archive: bool) -> None:
        super().__init__(seed, replace(SETTINGS, archive=archive))

    def _are_equal(self) -> bool:
        """Whether followers have deleted what their leader has."""
        followed = [node.replicas.get(KEY) for node in self.nodes.values()]
        following = [r.as_follower for r in followed if r is not None and r.as_follower is not None]
        is_deleted = all(following.expired_segment() is None for following in following)
        begin_alike = all(len({self._start(name, log) for name in NAMES}) == 1 for log in LOGS)
        are_deleted = len(following) == len(NAMES) - 1 and is_deleted and begin_alike
        return are_deleted and self._is_archived()

    def _is_archived(self) -> bool:
        """Whether every node has in its archive what lies before its live log."""
        return not self.settings.archive or all(
            is_covered(archived_rows(self.manifests[name], "messages"), 0, self._start(name))
            for name in NAMES
        )

    def _start(self, name: str, log: str = "messages") -> int:
        return list_segments(self.disks[name], FOLDER / log)[0].base_offset

    def check_logs(self) -> None:
        """All nodes have the same frames at the same offsets, and all that was acknowledged."""
        frames = {name: self._frames(name) for name in NAMES}
        for one, other in pairwise(NAMES):
            both = frames[one].keys() & frames[other].keys()
            assert all(frames[one][offset] == frames[other][offset] for offset in both)
        for name in NAMES:
            check_manifest(self.disks[name], self.manifests[name])
            self._check_values(name, frames[name])

    def _frames(self, name: str) -> dict[int, bytes]:
        executor = SimExecutor(self.loop, self.random, lambda: False)
        archive = archive_of(self.disks[name], self.manifests[name], executor)
        return whole_log(self.disks[name], archive, "messages")

    def _check_values(self, name: str, frames: dict[int, bytes]) -> None:
        held: dict[int, bytes | None] = {}
        for base, data in frames.items():
            view = FrameView.parse(data)
            held |= dict(enumerate(view.values(0, view.header.message_count), base))
        assert self.settings.archive is False or min(held) == 0, name
        assert sorted(held) == list(range(min(held), max(held) + 1)), name
        for value, offset in self.books.acknowledged.items():
            assert offset < min(held) or held[offset] == value, (name, offset)


@pytest.fixture(autouse=True)
def small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 2000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 1.0)


@pytest.mark.parametrize("seeds", first_of([4, 10], quick=1))
def test_each_replica_has_in_its_archive_what_all_have_deleted(seeds: int) -> None:
    """Some worlds are too broken to write enough for anything to be deleted, but not most."""
    archiving = 0
    for seed in range(seeds):
        world = RetentionWorld(seed, archive=True)
        world.run(world.live(10))
        assert not world.loop.unexpected
        archiving += all(archived_rows(world.manifests[name], "messages") for name in NAMES)
    assert archiving > seeds // 2


def test_what_is_not_archived_is_deleted_on_all_nodes() -> None:
    deleting = 0
    for seed in range(10, 12):
        world = RetentionWorld(seed, archive=False)
        world.run(world.live(10))
        assert not world.loop.unexpected
        assert not any(archived_rows(world.manifests[name], "messages") for name in NAMES)
        deleting += all(world._start(name) > 0 for name in NAMES)
    assert deleting


@pytest.mark.parametrize("seed", first_of(range(16, 24), quick=2))
def test_what_a_bad_disk_has_lost_is_mended_before_it_is_archived(seed: int) -> None:
    world = RetentionWorld(seed, archive=True)
    world.rots_on = NAMES[seed % len(NAMES)]
    world.run(world.live(10))
    assert not world.loop.unexpected
    assert world.faults["rot"]
