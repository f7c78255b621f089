"""Messages as JSON answers have them, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from goq.errors import GoqError
from goq_cli.output.output import complain, print_json, print_table
from goq_cli.session import SESSION

_CHARS_MAX = 200
EXIT_IN_PART = 1


def print_messages(messages: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print messages, as JSON if that was asked for."""
    if SESSION.json:
        print_json({"messages": messages})
    else:
        print_table(columns, [[cell(message, name) for name in columns] for message in messages])


def cell(message: Mapping[str, Any], name: str) -> str:
    """Return one field, on one line and not too long."""
    text = message.get(name)
    if text is None:
        text = message.get(f"{name}_base64", "")
    shown = str(text).encode("unicode_escape").decode() if name in ("key", "value") else str(text)
    return shown if len(shown) <= _CHARS_MAX else shown[: _CHARS_MAX - 1] + "…"


def for_each(
    ids: Iterable[str], change: Callable[[str], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Change messages one by one, and tell of each that could not be; return those that were.

    The only one of its kind raises its error; of several the exit code tells that some failed.
    """
    names, done, failed = list(ids), list[Mapping[str, Any]](), 0
    for name in names:
        try:
            done.append(change(name))
        except GoqError as error:
            if len(names) == 1:
                raise
            complain(error)
            failed += 1
    if failed:
        print_messages(done, ("id", "state", "priority", "deliver_at"))
        raise typer.Exit(EXIT_IN_PART)
    return done
