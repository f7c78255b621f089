"""The options that select dead letters, shared by the commands of ``goq dlq``."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq.errors import GoqError, MessageNotFound
from goq_cli.output.output import EXIT_IN_PART, warn
from goq_cli.output.text import shown_field

if TYPE_CHECKING:
    from goq.client import Client

PORTION = 1_000
"""How many dead letters one request is about, at most."""

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic they died in, or that they are in.")
]
Group = Annotated[str | None, typer.Option("--group", metavar="G", help="Given up by this group.")]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="With this in the reason.")
]
ReasonIs = Annotated[
    str | None,
    typer.Option(
        "--reason-is", metavar="TEXT", help="With exactly this reason; empty: none was given."
    ),
]
Cause = Annotated[
    str | None,
    typer.Option("--cause", metavar="C", help="nacked, expired, rejected or ttl."),
]
Key = Annotated[str | None, typer.Option("--key", metavar="K", help="With this key.")]
From = Annotated[str | None, typer.Option("--from-time", metavar="T", help="Died then or later.")]
To = Annotated[str | None, typer.Option("--to-time", metavar="T", help="Died before then.")]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="This message; repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the effect.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def wanted_by(
    group: str | None,
    reason: str | None,
    reason_is: str | None,
    cause: str | None,
    key: str | None,
    from_time: str | None,
    to_time: str | None,
) -> dict[str, str | None]:
    """Return the filter of the options, for the client."""
    return {
        "group": group,
        "reason": reason,
        "reason_is": reason_is,
        "cause": cause,
        "key": key,
        "from_time": from_time,
        "to_time": to_time,
    }


def letters_of(
    client: Client,
    topic: str,
    limit: int,
    wanted: dict[str, str | None],
    ids: list[str] | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Yield up to ``limit`` dead letters, page by page."""
    left, after = limit, None
    while left:
        answer = client.list_dead_letters(
            topic, limit=min(left, PORTION), after=after, ids=ids or (), **wanted
        )
        yield from [letter.raw for letter in answer.messages]
        left -= len(answer.messages)
        after = answer.next
        if after is None:
            return


@contextmanager
def tells_count(total: Mapping[str, int], done: str) -> Generator[None]:
    """Add to an error how many dead letters were redriven, or purged, before it."""
    try:
        yield
    except GoqError as error:
        if total[done]:
            error.add_note(f"{total[done]:,} were {done} before")
        raise


def check_ids(topic: str, ids: list[str] | None, limit: int | None, matched: int) -> None:
    """Raise ``MessageNotFound`` if no id is of a dead letter; exit with 1 if some are of none."""
    missing = len(set(ids or ())) - matched
    if missing <= 0 or limit is not None:
        return
    if matched:
        warn(f"{missing} of the ids are of no such dead letters; see: goq dlq list {topic}")
        raise typer.Exit(EXIT_IN_PART)
    raise MessageNotFound(f"no id is of such a dead letter; see: goq dlq list {topic}", field="id")


def cell(letter: Mapping[str, Any], name: str) -> str:
    """Return a field of a dead letter on one line."""
    return shown_field({"redrives": 0, **letter}, name)
