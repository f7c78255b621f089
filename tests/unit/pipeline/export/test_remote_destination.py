"""A target of another filesystem: what is there is whole, whenever its writer ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow import fs

from goq.errors import Conflict, InvalidInput
from goq.pipeline.export import remote_destination as remote_target
from goq.pipeline.export.destination import Destination, LocalDestination, check_ours, open_target
from goq.pipeline.export.remote_destination import RemoteDestination


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
        RemoteDestination(StoppingFiles(99), str(root)).write("a/state.json", b"old")
        try:
            RemoteDestination(StoppingFiles(changes), str(root)).write("a/state.json", b"new")
        except Stopped:
            assert changes < 10
        else:
            break
        target = RemoteDestination(StoppingFiles(99), str(root))
        assert target.read("a/state.json") in (b"old", b"new")
        target.write("a/state.json", b"newer")
        assert target.read("a/state.json") == b"newer"
        assert target.names("a") == ["state.json"]
    assert changes > 3


def test_what_was_removed_does_not_come_back_after_a_writer_ended(tmp_path: Path) -> None:
    for changes in range(2, 5):
        root = tmp_path / str(changes)
        target = RemoteDestination(StoppingFiles(99), str(root))
        target.write("plan.json", b"old")
        with pytest.raises(Stopped):
            RemoteDestination(StoppingFiles(changes - 1), str(root)).write("plan.json", b"new")
        target.remove("plan.json")
        assert target.read("plan.json") is None
        assert not target.exists("plan.json")


@pytest.mark.parametrize(
    "kind", [LocalDestination, lambda root: RemoteDestination(StoppingFiles(99), str(root))]
)
def test_a_published_file_has_its_place_and_the_local_one_is_gone(
    kind: Callable[[Path], Destination], tmp_path: Path
) -> None:
    target, local = kind(tmp_path / "to"), tmp_path / "to" / "_goq" / "tmp" / "made"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"rows")
    target.publish(str(local), "messages/topic_folder=t/date=d/1.parquet")
    assert not local.exists()
    assert target.exists("messages/topic_folder=t/date=d/1.parquet")
    assert target.names("messages/topic_folder=t/date=d") == ["1.parquet"]
    assert target.read("messages/topic_folder=t/date=d/1.parquet") == b"rows"
    assert target.names("nowhere") == []
    assert target.read("nowhere") is None


def test_a_folder_of_others_is_not_written_to(tmp_path: Path) -> None:
    check_ours(LocalDestination(tmp_path), "there")
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(Conflict, match=r"letters\.txt"):
        check_ours(LocalDestination(tmp_path), "there")
    (tmp_path / "_goq").mkdir()
    check_ours(LocalDestination(tmp_path), "there")


def test_where_an_export_goes_is_told_by_its_uri(tmp_path: Path) -> None:
    assert isinstance(open_target(str(tmp_path)), LocalDestination)
    assert isinstance(open_target(f"file://{tmp_path}"), LocalDestination)
    with pytest.raises(InvalidInput, match="cannot be written to"):
        open_target("what://ever")


class CuttingFiles(StoppingFiles):
    """An object store whose streams end what is written to them when they are closed, cut or not.

    Reading is interrupted after its first piece.
    """

    type_name = "s3"

    def open_input_stream(self, path: str) -> Any:
        return _Interrupted(self._fs.open_input_stream(path))


class _Interrupted:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pieces = 0

    def __enter__(self) -> _Interrupted:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size_bytes: int) -> bytes:
        self._pieces += 1
        if self._pieces > 1:
            raise KeyboardInterrupt
        return bytes(self._stream.read(2))


def test_a_copy_through_this_process_that_is_interrupted_leaves_no_cut_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_target, "_COPY_BYTES_MAX", 3)
    made = tmp_path / "made"
    made.write_bytes(b"rows")
    target = RemoteDestination(CuttingFiles(99), str(tmp_path / "to"))
    with pytest.raises(KeyboardInterrupt):
        target.publish(str(made), "messages/1.parquet")
    assert not target.exists("messages/1.parquet")
    again = StoppingFiles(99)
    again.type_name = "s3"
    RemoteDestination(again, str(tmp_path / "to")).publish(str(made), "messages/1.parquet")
    assert (tmp_path / "to" / "messages" / "1.parquet").read_bytes() == b"rows"
    assert not made.exists()


def test_a_uri_for_others_tells_neither_passwords_nor_options() -> None:
    target = open_target("s3://key:secret@bucket/my/lake/?region=eu-west-1&scheme=http")
    assert target.uri("messages/1.parquet") == "s3://bucket/my/lake/messages/1.parquet"
    assert LocalDestination(Path("/my lake")).uri("1.parquet") == "file:///my lake/1.parquet"
