"""Registration of exported files in Delta tables, in place: the folder of a table is the table.

    DIR/messages/_delta_log, DIR/events/_delta_log, DIR/groups/_delta_log

Each commit has an application transaction: the id of the export, and the number of the last
manifest whose files it adds. So an interrupted run has registered all of them or none. Merged files
take the place of their sources in the same way.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from goq.errors import Conflict, GoqError, NotFound, Unavailable
from goq.pipeline.arrow.json_columns import decoded_schema
from goq.pipeline.arrow.schema import EXPORTED, FOLDERS
from goq.pipeline.export.catalogs.catalog import ATTEMPTS, Registered, line_of
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.ledger import ExportLedger, ExportState, FileEntry, changed_files

_MADE_BY = "goq export"


class DeltaTables:
    """The Delta tables in the folder of an export."""

    def register(self, target: Destination, topic: str) -> list[Registered]:
        """Add the finished files of a topic that its tables lack; the caller has claimed the topic.

        Raises ``Conflict`` for a table that is not of an export.
        """
        return [Registered(name, _register(target, name, topic)) for name in EXPORTED]


def _register(target: Destination, name: str, topic: str) -> int:
    ledger = ExportLedger(target, name, topic)
    state = ledger.state()
    if state is None or not state.plans:
        return 0
    with _explained(name):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _commit(target, name, ledger, state)
            except CommitFailedError:  # another commit was faster
                if attempt == ATTEMPTS:
                    raise
    raise AssertionError(attempt)


def _table(target: Destination, name: str) -> DeltaTable:
    """Return a table, created if it does not exist."""
    place = target.uri(name)
    if not DeltaTable.is_deltatable(place):
        schema = _with_folders(EXPORTED[name][0])
        try:
            DeltaTable.create(place, schema, "ignore", list(FOLDERS), description=_MADE_BY)
        except CommitFailedError:  # another export created it
            pass
    table = DeltaTable(place)
    if table.metadata().description != _MADE_BY:
        raise Conflict(f"the Delta table {place} was not made by goq export; use another folder")
    return table


def _commit(target: Destination, name: str, ledger: ExportLedger, state: ExportState) -> int:
    """Add what the table lacks now, in one commit; return the number of files."""
    table = _table(target, name)
    manifests = ledger.manifests_since(table.transaction_version(state.id) or 0, state)
    if not manifests:
        return 0
    if not state.is_registered:  # before a table names a file
        ledger.put_state(msgspec.structs.replace(state, is_registered=True))
    schema, _ = EXPORTED[name]
    if state.decoded is not None and name == "messages":
        schema = decoded_schema(schema, state.decoded)
    _add_columns(table, schema)
    added, merged = changed_files(manifests)
    entries = {entry.path: entry for manifest in manifests for entry in manifest.files}
    actions: list[AddAction | RemoveAction] = [
        *(_added(name, entries[path], is_new=True) for path in added),
        *(_added(name, entries[path], is_new=False) for path in merged),
        *(_removed(name, path) for sources in merged.values() for path in sources),
    ]
    mark = Transaction(state.id, manifests[-1].number, None)
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        list(FOLDERS),
        commit_properties=CommitProperties(app_transactions=[mark]),
    )
    return len(added) + len(merged)


def _added(name: str, entry: FileEntry, *, is_new: bool) -> AddAction:
    path, folders = _place(name, entry.path)
    stats = json.dumps({"numRecords": entry.rows})
    return AddAction(path, entry.bytes, folders, entry.last_time_us // 1000, is_new, stats)


def _removed(name: str, source: str) -> RemoveAction:
    path, folders = _place(name, source)
    now_ms = time.time_ns() // 1_000_000
    return RemoveAction(path, False, now_ms, partition_values=folders)


def _place(name: str, path: str) -> tuple[str, dict[str, str | None]]:
    """Return a file's path in the table, and the values that its folders name."""
    path = path.removeprefix(f"{name}/")
    folders: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        key, _, value = part.partition("=")
        folders[key] = value
    return path, folders


def _add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Add the decoded columns that the table lacks.

    Raises ``Conflict`` for one that the table has with another type.
    """
    known = {field.name: field for field in table.schema().fields}
    wanted = Schema.from_arrow(schema).fields
    for field in wanted:
        if field.name in known and known[field.name].type != field.type:
            raise Conflict(
                f"the Delta table has {field.name} as {known[field.name].type}, not {field.type};"
                " the files are exported, and not registered"
            )
    new = [field for field in wanted if field.name not in known]
    if new:
        table.alter.add_columns(new)


def _with_folders(schema: pa.Schema) -> pa.Schema:
    for name, kind in FOLDERS.items():
        schema = schema.append(pa.field(name, kind))
    return schema


@contextmanager
def _explained(name: str) -> Generator[None, None, None]:
    """Turn errors of Delta or its storage into one line."""
    try:
        yield
    except GoqError:
        raise
    except FileNotFoundError as error:
        raise NotFound(f"Delta, {name}: {line_of(error)}; an exported file is gone") from error
    except Exception as error:  # deltalake raises OSError, DeltaError and its own kinds
        raise Unavailable(
            f"Delta, {name}: {line_of(error)}; the next run registers what is missing"
        ) from error
