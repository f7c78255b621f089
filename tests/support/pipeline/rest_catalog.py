"""An Iceberg REST catalog: as much of the protocol as an export needs.

It keeps tables in a catalog of pyiceberg, checks the requirements of each commit against what the
table is then, and answers 409 where they do not hold, as the protocol wants.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest, Table

_STATUS: dict[type[Exception], int] = {
    exceptions.NoSuchTableError: 404,
    exceptions.NoSuchNamespaceError: 404,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
}


class RestCatalogServer:
    """The tables, and the commits that were asked for."""

    def __init__(self, folder: Path) -> None:
        places = {"uri": f"sqlite:///{folder}/rest.db", "warehouse": f"file://{folder}/warehouse"}
        self.tables = SqlCatalog("behind", **places)
        self.before_commit: Callable[[str], None] = lambda name: None
        """Called with the table of each commit before it is checked."""
        self.conflicts = 0
        self.url = ""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        try:
            with self._lock:
                return 200, self._answer(method, path.strip("/").split("/")[1:], body)
        except tuple(_STATUS) as error:
            status = _STATUS[type(error)]
            told = {"message": str(error), "type": type(error).__name__, "code": status}
            self.conflicts += isinstance(error, exceptions.CommitFailedException)
            return status, {"error": told}

    def _answer(self, method: str, parts: list[str], body: Any) -> Any:
        match method, parts:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.tables.create_namespace(tuple(body["namespace"]))
                return body
            case "POST", ["namespaces", namespace, "tables"]:
                return self._create(
                    namespace, CreateTableRequest.model_validate({"location": None, **body})
                )
            case "GET", ["namespaces", namespace, "tables", name]:
                return _table(self.tables.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._commit(namespace, name, CommitTableRequest.model_validate(body))
        raise AssertionError((method, parts))

    def _create(self, namespace: str, asked: CreateTableRequest) -> Any:
        make = self.tables._create_staged_table if asked.stage_create else self.tables.create_table
        return _table(
            make(
                (namespace, asked.name),
                asked.table_schema,
                asked.location,
                *filter(None, [asked.partition_spec, asked.write_order]),
                properties=asked.properties,
            )
        )

    def _commit(self, namespace: str, name: str, asked: CommitTableRequest) -> Any:
        self.before_commit(name)
        named = Table((namespace, name), None, "", None, self.tables)
        done = self.tables.commit_table(named, asked.requirements, asked.updates)
        return json.loads(done.model_dump_json(by_alias=True))


def _table(table: Table) -> Any:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


@contextmanager
def rest_catalog(folder: Path) -> Generator[RestCatalogServer, None, None]:
    """Serve a catalog on a free port."""
    catalog = RestCatalogServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._respond(None)

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _respond(self, body: Any) -> None:
            status, said = catalog.answer(self.command, self.path.partition("?")[0], body)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    catalog.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield catalog
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        catalog.tables.close()
