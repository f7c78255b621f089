"""Stored state of an export, beside its files: the progress, and the plan under way.

    _goq/TABLE/TOPIC/state.json           the end of each partition, and the bounds in time
    _goq/TABLE/TOPIC/plan.json            the pieces being written now
    _goq/TABLE/TOPIC/compaction.json      the files being merged now
    _goq/TABLE/TOPIC/manifest-NNNNNN.json the files of each finished plan

The order of steps: store the plan, publish its files, write its manifest, write the new state,
remove the plan. Each step is idempotent. A long plan is stored again now and then with its
progress.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from goq.errors import Conflict, CorruptData
from goq.pipeline.arrow.json_columns import FieldCounts
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.plan import Piece

VERSION = 3
"""Since version 3 no decoded column has the name of a folder."""
MissingRange = tuple[int, int, int]
"""A partition, and its offsets from a first one up to an end."""

_READABLE = (2, VERSION)
_MANIFEST = re.compile(r"manifest-([0-9]+)\.json")


class ExportState(msgspec.Struct, kw_only=True):
    """The progress of an export, and its bounds in microseconds; None for no bound.

    ``decoded`` are the columns of decoded JSON values, or None; ``fields`` counts the fields that
    the last plan's values had. ``began`` is the first offset of each partition, ``include_deleted``
    whether archives are read. ``id`` is unique to one export of one table of one topic.
    ``topic_id`` is that of the topic on its node; "" before the first run of a version that knows
    ids. ``missing`` are the offsets that no file has; None before the first run of a version that
    keeps them here. ``is_registered``: a catalog has been told of the files. ``lanes`` are the
    names of the topic's lanes at the last run; none where lanes have only numbers.
    """

    version: int = VERSION
    id: str
    topic: str
    from_time_us: int | None = None
    to_time_us: int | None = None
    decoded: dict[str, str] | None = None
    fields: FieldCounts = {}
    include_deleted: bool = False
    began: dict[int, int] = {}
    reached: dict[int, int] = {}
    plans: int = 0
    topic_id: str = ""
    missing: list[MissingRange] | None = None
    is_registered: bool = False
    lanes: list[str] = []


class FileEntry(msgspec.Struct, kw_only=True):
    """One finished file; its path is relative to the destination.

    ``crc32c`` is None on filesystems that are not local.
    """

    path: str
    partition: int
    start_offset: int
    end_offset: int
    rows: int
    bytes: int
    first_time_us: int
    last_time_us: int
    crc32c: int | None = None


class Plan(msgspec.Struct, kw_only=True):
    """The pieces under way; all files of the first ``done`` pieces are published.

    ``again`` are offsets that were missing, and are tried again. ``decoded`` are the columns of
    their files; None in a plan of an earlier version, which has
    those of its state.
    """

    version: int = VERSION
    number: int
    pieces: list[Piece]
    done: int = 0
    files: list[FileEntry] = []
    missing: list[MissingRange] = []
    again: list[MissingRange] = []
    decoded: dict[str, str] | None = None
    fields: FieldCounts = {}


class Manifest(msgspec.Struct, kw_only=True):
    """The files of one plan, and the offsets that could not be exported.

    ``again`` are missing offsets of earlier manifests; those not in ``missing`` are in ``files``.
    ``merged`` names the earlier files whose rows a file has now, by its path; they are gone.
    """

    version: int = VERSION
    number: int
    files: list[FileEntry]
    missing: list[MissingRange] = []
    again: list[MissingRange] = []
    merged: dict[str, list[str]] = {}


class Merge(msgspec.Struct, kw_only=True):
    """Files of one partition and date, and the path of the file that gets their rows."""

    path: str
    sources: list[FileEntry]


class MergePlan(msgspec.Struct, kw_only=True):
    """The merges under way, all in one folder of a date; ``number`` is that of their manifest."""

    version: int = VERSION
    number: int
    folder: str
    merges: list[Merge]


_Shape = TypeVar("_Shape", ExportState, Plan, Manifest, MergePlan)


class ExportLedger:
    """The stored state of one table of one topic. Raises the errors of its destination."""

    def __init__(self, target: Destination, table: str, topic: str) -> None:
        self._target = target
        self._folder = f"_goq/{table}/{topic}"
        self._files = f"{table}/topic_folder={topic}"

    def state(self) -> ExportState | None:
        """Return the state, None before the first export; raise ``CorruptData``."""
        return self._load("state.json", ExportState)

    def plan(self) -> Plan | None:
        """Return the unfinished plan, if any."""
        return self._load("plan.json", Plan)

    def merge_plan(self) -> MergePlan | None:
        """Return the unfinished merges, if any."""
        return self._load("compaction.json", MergePlan)

    def manifests(self, after: int = 0) -> list[Manifest]:
        """Return the manifests with numbers above ``after``, in order, without merged files."""
        found = self.all_manifests(after)
        gone = {path for each in found for some in each.merged.values() for path in some}
        return [
            msgspec.structs.replace(each, files=[e for e in each.files if e.path not in gone])
            for each in found
        ]

    def manifests_since(self, number: int, state: ExportState) -> list[Manifest]:
        """Return the manifests with numbers above ``number``, in order, as they were written.

        Raises ``CorruptData`` if one of those that the state counts is gone.
        """
        found = self.all_manifests(number)
        gone = set(range(number + 1, state.plans + 1)) - {each.number for each in found}
        if gone:
            raise CorruptData(
                f"{self._folder}/{_name(min(gone))} is gone, and with it which files to register:"
                " restore it, or export into an empty folder"
            )
        return found

    def check_unbegun(self) -> None:
        """Raise ``CorruptData`` if there are manifests or files, though there is no state."""
        kept = [n for n in self._target.names(self._folder) if _MANIFEST.fullmatch(n)]
        if kept or self._target.names(self._files):
            raise CorruptData(
                f"{self._folder}/state.json is gone, and with it what {self._files} has: restore"
                " it, or export into an empty folder"
            )

    def all_manifests(self, after: int = 0) -> list[Manifest]:
        """Return the manifests with numbers above ``after``, in order, as they were written."""
        numbers = [
            int(found[1])
            for found in map(_MANIFEST.fullmatch, self._target.names(self._folder))
            if found is not None
        ]
        found = [self._load(_name(n), Manifest) for n in sorted(numbers) if n > after]
        return [manifest for manifest in found if manifest is not None]

    def note_merges(self, plan: MergePlan) -> None:
        """Store merges before their first file is written."""
        self._store("compaction.json", plan)

    def drop_merges(self) -> None:
        """Remove the merges, which are finished or given up."""
        self._target.remove(f"{self._folder}/compaction.json")

    def note(self, plan: Plan) -> None:
        """Store a plan: before its first file is written, and with its progress."""
        self._store("plan.json", plan)

    def finish(self, manifest: Manifest, state: ExportState) -> None:
        """Store the manifest and the new state of a finished plan."""
        self.put_manifest(manifest)
        self.put_state(state)
        self._target.remove(f"{self._folder}/plan.json")

    def put_manifest(self, manifest: Manifest) -> None:
        """Store a manifest."""
        self._store(_name(manifest.number), manifest)

    def put_state(self, state: ExportState) -> None:
        """Store the state."""
        self._store("state.json", state)

    def _load(self, name: str, shape: type[_Shape]) -> _Shape | None:
        path = f"{self._folder}/{name}"
        data = self._target.read(path)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=shape)
        except msgspec.MsgspecError as error:
            raise CorruptData(
                f"{path} cannot be read ({error}): restore it, or export into an empty folder"
            ) from None
        if found.version not in _READABLE:
            raise Conflict(f"{path} is of version {found.version}; this goq writes {VERSION}")
        return found

    def _store(self, name: str, value: msgspec.Struct) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        self._target.write(f"{self._folder}/{name}", data)


def changed_files(manifests: Sequence[Manifest]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the files that consecutive manifests add, and those that take the place of earlier.

    The latter by their path, with the files of manifests before these whose rows they have.
    """
    made = {entry.path for manifest in manifests for entry in manifest.files}
    sources = {path: some for manifest in manifests for path, some in manifest.merged.items()}
    gone = {path for some in sources.values() for path in some}
    added, merged = [], {}
    for path in sorted(made - gone):
        first = list(_first_sources(path, sources))
        before = [each for each in first if each not in made]
        if not before:
            added.append(path)
        elif len(before) == len(first):
            merged[path] = before
        else:
            raise Conflict(f"{path} was merged from files of which only some are registered")
    return added, merged


def _first_sources(path: str, sources: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if path not in sources:
        yield path
    for each in sources.get(path, ()):
        yield from _first_sources(each, sources)


def _name(number: int) -> str:
    return f"manifest-{number:06d}.json"
