"""Registration of exported files in Iceberg tables, in place: no file is written again.

Each table of an export is an Iceberg table, partitioned by topic and day:

    CATALOG.NAMESPACE.messages, events, groups

A table property holds the last registered manifest of each topic. It is committed together with
the files, so an interrupted run has registered both or neither. The property counts, not the
table's list of files: compaction by other programs may replace the files. Files that goq merged
take the place of their sources in the same commit.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import DayTransform, IdentityTransform

from goq.errors import Conflict, GoqError, NotAllowed, NotFound, Unavailable, UsageError
from goq.pipeline.arrow.json_columns import decoded_schema
from goq.pipeline.arrow.schema import EXPORTED
from goq.pipeline.export.catalogs.catalog import ATTEMPTS, Registered, line_of
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.ledger import ExportLedger, ExportState, changed_files

NAMESPACE = "goq"
_KIND = "goq.table"
_REACHED = "goq.registered."
_RETRIES = "commit.retry.num-retries"


class _Overtaken(Exception):
    """Another commit was faster, and the table was not changed by this one."""


class _SingleCommit:
    """A catalog in which a transaction commits at most once.

    pyiceberg looks, when it tries again, whether a commit that was answered as failed is in the
    table. What it would add then may have been added by another run, so the second commit is
    refused. Without a second try it would delete the files of the first, also one that has landed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._is_used = False

    def __getattr__(self, name: str) -> Any:
        """Return what the catalog has by that name."""
        return getattr(self._catalog, name)

    def commit_table(self, *commit: Any) -> Any:
        """Commit the first time; raise ``_Overtaken`` then."""
        if self._is_used:
            raise _Overtaken
        self._is_used = True
        return self._catalog.commit_table(*commit)


class IcebergCatalog:
    """An Iceberg catalog, and the namespace of an export's tables."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self._catalog = catalog
        self._namespace = namespace

    def register(self, target: Destination, topic: str) -> list[Registered]:
        """Add the finished files of a topic that its tables lack; the caller has claimed the topic.

        Raises ``Conflict`` for a table that is not of this export.
        """
        return [Registered(name, self._register(target, name, topic)) for name in EXPORTED]

    def _register(self, target: Destination, name: str, topic: str) -> int:
        ledger = ExportLedger(target, name, topic)
        state = ledger.state()
        if state is None or not state.plans:
            return 0
        with _explained(f"{self._catalog.name}.{self._namespace}.{name}"):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return self._commit(target, name, topic, state)
                except (_Overtaken, exceptions.CommitFailedException):
                    if attempt == ATTEMPTS:
                        raise Unavailable(
                            f"Iceberg, {name}: other commits were faster {attempt} times"
                        ) from None
        raise AssertionError(attempt)

    def _commit(self, target: Destination, name: str, topic: str, state: ExportState) -> int:
        """Add what the table lacks now."""
        table = self._table(name)
        reached = self._reached(table, name, topic, state)
        ledger = ExportLedger(target, name, topic)
        manifests = ledger.manifests_since(reached, state)
        if not manifests:
            return 0
        if not state.is_registered:  # before a catalog names a file
            ledger.put_state(msgspec.structs.replace(state, is_registered=True))
        table.metadata.properties[_RETRIES] = "1"
        table.catalog = cast(Catalog, _SingleCommit(self._catalog))
        added, merged = changed_files(manifests)
        files = [target.uri(path) for path in added]
        named = {target.uri(path): [*map(target.uri, some)] for path, some in merged.items()}
        replaced = _replaced(table, named)
        with table.transaction() as change:
            _add_columns(change, _schema(name, state))
            if files:
                change.add_files(files)
            if replaced:
                _replace(change, table, replaced)
            mark = f"{state.id}:{manifests[-1].number}"
            change.set_properties({f"{_REACHED}{topic}": mark})
        return len(files) + len(replaced)

    def _table(self, name: str) -> Table:
        """Return a table, created if it does not exist."""
        full_name = (*self._namespace.split("."), name)
        try:
            return self._catalog.load_table(full_name)
        except exceptions.NoSuchTableError:
            pass
        schema, time = EXPORTED[name]
        self._catalog.create_namespace_if_not_exists(self._namespace)
        try:
            with self._catalog.create_table_transaction(full_name, schema) as change:
                with change.update_spec() as spec:
                    spec.add_field("topic", IdentityTransform())
                    spec.add_field(time, DayTransform(), "date")
                change.set_properties({_KIND: name})
        except exceptions.TableAlreadyExistsError:  # another export created it
            pass
        return self._catalog.load_table(full_name)

    def _reached(self, table: Table, name: str, topic: str, state: ExportState) -> int:
        """Return the number of the last registered manifest; 0 for none."""
        where = f"{self._catalog.name}.{self._namespace}.{name}"
        advice = "register into a namespace of its own: --register iceberg CATALOG.NAMESPACE"
        if table.properties.get(_KIND) != name:
            raise Conflict(f"{where} was not made by goq export; {advice}")
        export, _, number = table.properties.get(f"{_REACHED}{topic}", f"{state.id}:0").partition(
            ":"
        )
        if export != state.id:
            raise Conflict(f"{where} has {topic} from the export in another folder; {advice}")
        return int(number)


def open_catalog(name: str) -> IcebergCatalog:
    """Return the catalog of ``CATALOG`` or ``CATALOG.NAMESPACE``, from pyiceberg's configuration.

    Raises ``UsageError`` if it is not configured.
    """
    catalog, _, namespace = name.partition(".")
    with _explained(catalog):
        try:
            return IcebergCatalog(load_catalog(catalog), namespace or NAMESPACE)
        except (ValueError, exceptions.NotInstalledError) as error:
            raise UsageError(
                f"pyiceberg cannot open the catalog {catalog!r} ({line_of(error)}); describe it in"
                f" ~/.pyiceberg.yaml, or as PYICEBERG_CATALOG__{catalog.upper()}__URI"
            ) from None


def _schema(name: str, state: ExportState) -> pa.Schema:
    schema, _ = EXPORTED[name]
    return schema if state.decoded is None else decoded_schema(schema, state.decoded)


def _add_columns(change: Transaction, schema: pa.Schema) -> None:
    """Add the decoded columns that the table lacks."""
    known = set(change.table_metadata.schema().column_names)
    new = [field for field in schema if field.name not in known]
    if new:
        with change.update_schema() as update:
            update.union_by_name(pa.schema(new))


def _replaced(table: Table, merged: Mapping[str, Sequence[str]]) -> dict[str, list[DataFile]]:
    """Return the merged files, each with its sources in the table.

    Without those whose sources another program has rewritten: their rows are in the table.
    """
    if not merged:
        return {}
    there = {task.file.file_path: task.file for task in table.scan().plan_files()}
    found: dict[str, list[DataFile]] = {}
    for path, sources in merged.items():
        known = [there[source] for source in sources if source in there]
        if len(known) == len(sources):
            found[path] = known
        elif known:
            raise Conflict(
                f"{path} was merged from {len(sources)} files, of which another program has"
                f" rewritten {len(sources) - len(known)} in the table: register into a namespace"
                " of its own"
            )
    return found


def _replace(change: Transaction, table: Table, merged: Mapping[str, Sequence[DataFile]]) -> None:
    """Put merged files into the table in the place of their sources."""
    made = parquet_files_to_data_files(table.io, change.table_metadata, iter(merged))
    with change.update_snapshot().overwrite() as snapshot:
        for file in made:
            snapshot.append_data_file(file)
        for sources in merged.values():
            for source in sources:
                snapshot.delete_data_file(source)


@contextmanager
def _explained(where: str) -> Generator[None, None, None]:
    """Turn errors of a catalog or its storage into one line."""
    try:
        yield
    except GoqError:
        raise
    except (exceptions.UnauthorizedError, exceptions.ForbiddenError, PermissionError) as error:
        raise NotAllowed(f"Iceberg, {where}: {line_of(error)}; check your credentials") from error
    except FileNotFoundError as error:
        raise NotFound(f"Iceberg, {where}: {line_of(error)}; an exported file is gone") from error
    except (ValueError, exceptions.ValidationException) as error:
        raise Conflict(
            f"Iceberg, {where}: {line_of(error)}; the files are exported, and not registered"
        ) from error
    except Exception as error:  # each kind of catalog has its own errors
        raise Unavailable(
            f"Iceberg, {where}: {line_of(error)}; the next run registers what is missing"
        ) from error
