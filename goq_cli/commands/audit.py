"""``goq audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import format_time, print_json, warn
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client.results.audit import AuditEntry

_NO_TOKEN = "-"


def command(
    since: Annotated[
        str | None, typer.Option(metavar="T", help="Records of this time or later, as -1d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="T", help="Records before this time.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option(metavar="X", help="Of the token with this id or name.")
    ] = None,
) -> None:
    """Show what was managed, operated, administered and refused, and by whom.

    An action and its failure are one line. With --json each record is an object.
    """
    with SESSION.client() as client:
        if client.whoami().auth == "off":
            warn("the node asks for no tokens (security.auth), and so records nothing")
        found = client.read_audit(since=since, until=until, principal=principal)
        if SESSION.json:
            for record in found:
                print_json(record.raw)
            return
        rows: dict[str, tuple[str | None, ...]] = {}
        for record in found:
            begun = rows.get(record.request)
            rows[record.request] = _row(record) if begun is None else (begun[0], *_row(record)[1:])
    columns = ("time", "who", "from", "action", "on", "result")
    print_table(columns, list(rows.values()))


def _row(record: AuditEntry) -> tuple[str | None, ...]:
    is_known = record.principal != _NO_TOKEN
    result = record.result if not record.code else f"{record.result} {record.code}"
    return (
        format_time(record.time),
        f"{record.name} {record.principal}".strip() if is_known else _NO_TOKEN,
        record.peer,
        f"{record.method} {record.path}" if record.count == 1 else f"{record.count} more",
        " ".join(record.topics),
        result,
    )
