"""A target of another filesystem: what is there is whole, whenever its writer ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow import fs

from goq.errors import Conflict, InvalidInput
from goq.pipeline.remote_target import RemoteTarget
from goq.pipeline.target import LocalTarget, Target, check_ours, open_target


class Stopped(BaseException):
    """The process ended here."""


class StoppingFiles:
    """A filesystem that ends the process before its n-th change."""

    type_name = "hdfs"

    def __init__(self, changes: int) -> None:
        self.left = changes
        self._fs = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._fs, name)
        if name not in ("open_output_stream", "move", "delete_file"):
            return method

        def change(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Stopped
            return method(*arguments, **named)

        return change


def test_a_small_file_is_the_old_one_or_the_new_one_whenever_its_writer_ends(
    tmp_path: Path,
) -> None:
    for changes in range(20):
        root = tmp_path / str(changes)
        RemoteTarget(StoppingFiles(99), str(root)).write("a/state.json", b"old")
        try:
            RemoteTarget(StoppingFiles(changes), str(root)).write("a/state.json", b"new")
        except Stopped:
            assert changes < 10
        else:
            break
        target = RemoteTarget(StoppingFiles(99), str(root))
        assert target.read("a/state.json") in (b"old", b"new")
        target.write("a/state.json", b"newer")
        assert target.read("a/state.json") == b"newer"
        assert target.names("a") == ["state.json"]
    assert changes > 3


def test_what_was_removed_does_not_come_back_after_a_writer_ended(tmp_path: Path) -> None:
    for changes in range(2, 5):
        root = tmp_path / str(changes)
        target = RemoteTarget(StoppingFiles(99), str(root))
        target.write("plan.json", b"old")
        with pytest.raises(Stopped):
            RemoteTarget(StoppingFiles(changes - 1), str(root)).write("plan.json", b"new")
        target.remove("plan.json")
        assert target.read("plan.json") is None
        assert not target.exists("plan.json")


@pytest.mark.parametrize(
    "kind", [LocalTarget, lambda root: RemoteTarget(StoppingFiles(99), str(root))]
)
def test_a_published_file_has_its_place_and_the_local_one_is_gone(
    kind: Callable[[Path], Target], tmp_path: Path
) -> None:
    target, local = kind(tmp_path / "to"), tmp_path / "to" / "_goq" / "tmp" / "made"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"rows")
    target.publish(str(local), "messages/topic=t/date=d/1.parquet")
    assert not local.exists()
    assert target.exists("messages/topic=t/date=d/1.parquet")
    assert target.names("messages/topic=t/date=d") == ["1.parquet"]
    assert target.read("messages/topic=t/date=d/1.parquet") == b"rows"
    assert target.names("nowhere") == []
    assert target.read("nowhere") is None


def test_a_folder_of_others_is_not_written_to(tmp_path: Path) -> None:
    check_ours(LocalTarget(tmp_path), "there")
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(Conflict, match=r"letters\.txt"):
        check_ours(LocalTarget(tmp_path), "there")
    (tmp_path / "_goq").mkdir()
    check_ours(LocalTarget(tmp_path), "there")


def test_where_an_export_goes_is_told_by_its_uri(tmp_path: Path) -> None:
    assert isinstance(open_target(str(tmp_path)), LocalTarget)
    assert isinstance(open_target(f"file://{tmp_path}"), LocalTarget)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        open_target("what://ever")
