"""``goq peek``."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import typer

from goq.errors import UsageError
from goq.units import format_time_us
from goq_cli.output import print_json, print_table
from goq_cli.session import SESSION

STATES = ("ready", "leased", "retry")


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    group: Annotated[str | None, typer.Option(metavar="G", help="Whose messages.")] = None,
    state: Annotated[str | None, typer.Option(help=f"With --group: {', '.join(STATES)}.")] = None,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1)] = 10,
) -> None:
    """Look at messages without touching them: a group's by state, or the oldest in the log."""
    if group is None and state is not None:
        raise UsageError("--state needs a --group")
    with SESSION.client() as client:
        if group is not None:
            found = client.peek(topic, group, state=state or STATES[0], limit=maximum)["messages"]
        else:
            found = [
                {
                    "id": str(message.id),
                    "timestamp": format_time_us(message.timestamp),
                    "key": (message.key or b"").decode(errors="backslashreplace"),
                    "value": (message.value or b"").decode(errors="backslashreplace"),
                }
                for message in islice(client.log(topic), maximum)
            ]
    if SESSION.json:
        print_json({"messages": found})
        return
    columns = ("id", "timestamp", "attempt", "key", "value")
    print_table(columns, [[_cell(message, name) for name in columns] for message in found])


def _cell(message: dict[str, Any], name: str) -> str:
    text = message.get(name)
    if text is None:
        text = message.get(f"{name}_base64", "")
    shown = str(text).encode("unicode_escape").decode() if name in ("key", "value") else str(text)
    return shown if len(shown) <= 200 else shown[:199] + "…"
