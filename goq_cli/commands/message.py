"""``goq message``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from goq_cli.output.message_table import cell, for_each, print_messages
from goq_cli.output.output import print_json, print_table
from goq_cli.session import SESSION

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Ids = Annotated[list[str], typer.Argument(metavar="ID…")]
_FIELDS = (
    "id",
    "state",
    "timestamp",
    "priority",
    "tenant",
    "deliver_at",
    "expires_at",
    "key",
    "headers",
    "value",
)
_GROUP_COLUMNS = ("group", "state", "attempt", "consumer", "lease_until", "due")
_CHANGED = ("id", "state", "priority")


@app.command()
def show(message_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Show a message and what it is for each group."""
    with SESSION.client() as client:
        found = client.get_message(message_id).raw
    if SESSION.json:
        print_json(found)
        return
    rows = [[name, cell(found, name)] for name in _FIELDS if _has(found, name)]
    print_table(("field", "value"), rows)
    if found["groups"]:
        print_table(
            _GROUP_COLUMNS,
            [[each.get(name) for name in _GROUP_COLUMNS] for each in found["groups"]],
        )


@app.command()
def cancel(
    ids: _Ids,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept with it.")] = None,
) -> None:
    """Cancel messages: no group gets them that has not got them yet."""
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.cancel_message(name, reason=reason).raw)
    print_messages(done, _CHANGED)


@app.command()
def priority(
    ids: _Ids,
    to: Annotated[str, typer.Option("--to", metavar="P", help="The lane: its name or number.")],
) -> None:
    """Move messages that wait to another lane."""
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.set_message_priority(name, to).raw)
    print_messages(done, _CHANGED)


def _has(message: Mapping[str, Any], name: str) -> bool:
    return name in message or f"{name}_base64" in message
