"""``goq message``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from goq.errors import UsageError
from goq_cli.output.output import for_each, print_json, print_messages
from goq_cli.output.table import print_table
from goq_cli.output.text import shown_field
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
    """Show a message and its state in each group."""
    with SESSION.client() as client:
        found = client.get_message(message_id).raw
    if SESSION.json:
        print_json(found)
        return
    rows = [[name, shown_field(found, name)] for name in _FIELDS if _has(found, name)]
    print_table(("field", "value"), rows)
    if found["groups"]:
        print_table(
            _GROUP_COLUMNS,
            [[each.get(name) for name in _GROUP_COLUMNS] for each in found["groups"]],
        )


@app.command()
def cancel(
    ids: _Ids,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept in the trace.")] = None,
) -> None:
    """Cancel messages: groups that have not received them never do."""
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.cancel_message(name, reason=reason).raw)
    print_messages(done, _CHANGED)


@app.command()
def reschedule(
    ids: _Ids,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help="The new time.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="D", help="Or a duration from now; 0 is at once.")
    ] = None,
) -> None:
    """Change the delivery time of scheduled messages."""
    if (deliver_at is None) == (delay is None):
        raise UsageError("say when: --deliver-at or --delay")
    when = deliver_at if deliver_at is not None else _from_now(delay or "")
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.reschedule_message(name, when).raw)
    print_messages(done, ("id", "state", "deliver_at"))


@app.command("set-priority")
def set_priority(
    ids: _Ids,
    to: Annotated[str, typer.Option("--to", metavar="P", help="The lane: its name or number.")],
) -> None:
    """Move waiting messages to another lane."""
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.set_message_priority(name, to).raw)
    print_messages(done, _CHANGED)


def _from_now(delay: str) -> str:
    from goq.units import format_duration_ms, parse_duration_ms

    return f"+{format_duration_ms(parse_duration_ms(delay, field='delay'))}"


def _has(message: Mapping[str, Any], name: str) -> bool:
    return name in message or f"{name}_base64" in message
