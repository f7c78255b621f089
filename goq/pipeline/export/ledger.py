"""What an export knows of itself, kept beside its files: where it is, and what it is doing.

    _goq/TABLE/TOPIC/state.json           where each partition was left, and the bounds in time
    _goq/TABLE/TOPIC/plan.json            the pieces being written now
    _goq/TABLE/TOPIC/manifest-NNNNNN.json the files of each finished plan

In this order a plan is stored, its files are given their names, its manifest is written, then the
state that it leads to, and then the plan is removed. A step that comes twice does no harm. A long
plan is stored again now and then with what is done of it.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from goq.errors import Conflict, CorruptData
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.plan import Piece

VERSION = 1
_MANIFEST = re.compile(r"manifest-([0-9]+)\.json")


class ExportState(msgspec.Struct, kw_only=True):
    """Where an export stands; times in microseconds bound what it takes, None for no bound.

    ``decoded`` are the columns that JSON values are decoded into, None where they are not.
    ``began`` is where each partition began, and ``include_deleted`` whether archives are read. An
    ``id`` is of one export of one table of one topic alone.
    """

    version: int = VERSION
    id: str
    topic: str
    from_time_us: int | None = None
    to_time_us: int | None = None
    decoded: dict[str, str] | None = None
    include_deleted: bool = False
    began: dict[int, int] = {}
    reached: dict[int, int] = {}
    plans: int = 0


class FileEntry(msgspec.Struct, kw_only=True):
    """One finished file; its path is relative to the target."""

    path: str
    partition: int
    start_offset: int
    end_offset: int
    rows: int
    bytes: int
    first_time_us: int
    last_time_us: int


class Plan(msgspec.Struct, kw_only=True):
    """Pieces that are being written; of the first ``done`` of them all files are published."""

    version: int = VERSION
    number: int
    pieces: list[Piece]
    done: int = 0
    files: list[FileEntry] = []
    missing: list[tuple[int, int, int]] = []


class Manifest(msgspec.Struct, kw_only=True):
    """The files of one plan, and offsets that could not be exported."""

    version: int = VERSION
    number: int
    files: list[FileEntry]
    missing: list[tuple[int, int, int]] = []


_Shape = TypeVar("_Shape", ExportState, Plan, Manifest)


class ExportLedger:
    """The stored state of one table of one topic. Raises what its target raises."""

    def __init__(self, target: Destination, table: str, topic: str) -> None:
        self._target = target
        self._folder = f"_goq/{table}/{topic}"

    def state(self) -> ExportState | None:
        """Return the state, None where nothing was exported yet; raises ``CorruptData``."""
        return self._load("state.json", ExportState)

    def plan(self) -> Plan | None:
        """Return the plan that was not finished, if there is one."""
        return self._load("plan.json", Plan)

    def manifests(self, after: int = 0) -> list[Manifest]:
        """Return the manifests of later numbers than ``after``, in order."""
        numbers = [
            int(found[1])
            for found in map(_MANIFEST.fullmatch, self._target.names(self._folder))
            if found is not None
        ]
        found = [self._load(_name(n), Manifest) for n in sorted(numbers) if n > after]
        return [manifest for manifest in found if manifest is not None]

    def note(self, plan: Plan) -> None:
        """Store a plan, before anything of it is written or with what is done."""
        self._store("plan.json", plan)

    def finish(self, manifest: Manifest, state: ExportState) -> None:
        """Store what a plan has led to."""
        self._store(_name(manifest.number), manifest)
        self.put_state(state)
        self._target.remove(f"{self._folder}/plan.json")

    def put_state(self, state: ExportState) -> None:
        """Store where the export stands."""
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
        if found.version != VERSION:
            raise Conflict(f"{path} is of version {found.version}; this goq writes {VERSION}")
        return found

    def _store(self, name: str, value: msgspec.Struct) -> None:
        data = msgspec.json.format(msgspec.json.encode(value), indent=1)
        self._target.write(f"{self._folder}/{name}", data)


def _name(number: int) -> str:
    return f"manifest-{number:06d}.json"
