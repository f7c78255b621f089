"""Where groups stand: a file for each export, and manifests that name all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from goq.client import Client, GroupDescription
from goq.errors import CorruptData
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.groups_table import export_groups
from goq.pipeline.export.ledger import ExportLedger
from tests.support.node.running_node import RunningNode


class Stopped(BaseException):
    """The process ended here."""


class StoppingTarget(LocalDestination):
    """Ends the process after its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.left = changes

    def _change(self, do: Callable[[], None]) -> None:
        do()
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def write(self, path: str, data: bytes) -> None:
        self._change(lambda: LocalDestination.write(self, path, data))

    def publish(self, made: str, path: str) -> None:
        self._change(lambda: LocalDestination.publish(self, made, path))

    def remove(self, path: str) -> None:
        self._change(lambda: LocalDestination.remove(self, path))


@pytest.mark.parametrize("has_begun", [True, False])
def test_stopped_at_any_change_every_file_is_in_one_manifest_after_the_next_run(
    node: RunningNode, topic: str, tmp_path: Path, has_begun: bool
) -> None:
    changes = 0
    with Client(node.url) as client:
        client.publish(topic, "v")
        client.receive_batch(topic, "g", max_messages=1, wait="5s").ack()
        while True:
            root = tmp_path / str(changes)
            if has_begun:
                export_groups(client, LocalDestination(root), topic, 1_000_000)
            try:
                export_groups(client, StoppingTarget(root, changes), topic, 86_400_000_000)
            except Stopped:
                pass
            else:
                break
            export_groups(client, LocalDestination(root), topic, 200_000_000_000)
            named = [
                e
                for m in ExportLedger(LocalDestination(root), "groups", topic).manifests()
                for e in m.files
            ]
            assert sorted(e.path for e in named) == sorted(
                str(p.relative_to(root)) for p in root.glob("groups/*/*/*")
            )
            assert {e.rows for e in named} == {3}
            changes += 1
    assert changes > 3


def test_a_partition_that_is_added_while_groups_are_read_has_its_rows_in_the_next_file(
    node: RunningNode, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(node.url) as client:
        client.publish(topic, "v")
        client.receive_batch(topic, "g", max_messages=1, wait="5s").ack()
        list_groups = client.list_groups

        def after_the_change(name: str) -> tuple[GroupDescription, ...]:
            client.alter_topic(name, partitions=4)
            return list_groups(name)

        monkeypatch.setattr(client, "list_groups", after_the_change)
        assert export_groups(client, LocalDestination(tmp_path), topic, 1_000_000) == 3
        assert export_groups(client, LocalDestination(tmp_path), topic, 2_000_000) == 4


def test_a_state_that_is_gone_is_said_and_no_file_added(
    node: RunningNode, topic: str, tmp_path: Path
) -> None:
    with Client(node.url) as client:
        client.publish(topic, "v")
        client.receive_batch(topic, "g", max_messages=1, wait="5s").ack()
        export_groups(client, LocalDestination(tmp_path), topic, 1_000_000)
        (tmp_path / f"_goq/groups/{topic}/state.json").unlink()
        with pytest.raises(CorruptData, match=r"state\.json is gone"):
            export_groups(client, LocalDestination(tmp_path), topic, 2_000_000)
    assert len(list(tmp_path.glob("groups/*/*/*"))) == 1
