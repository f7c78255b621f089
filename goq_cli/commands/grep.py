"""``goq grep``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from goq.errors import MessageNotFound, UsageError
from goq_cli.output.output import notice, print_messages
from goq_cli.output.progress import show_progress
from goq_cli.session import SESSION

_PARTS = ("value", "key", "header")
_PAGE = 100


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A text, compared as it is, byte for byte.")
    ],
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="A to Z match a to z.")
    ] = False,
    parts: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="PART", help=f"Where: {', '.join(_PARTS)}. Repeatable."),
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="T", help="Published at or after.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option("--to-time", metavar="T", help="Published before.")
    ] = None,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1)] = 100,
) -> None:
    """Show the messages that contain a text, the newest first. The node searches its log."""
    if unknown := set(parts or ()) - set(_PARTS):
        raise UsageError(f"--in takes {', '.join(_PARTS)}, not {min(unknown)!r}")
    found = list[Mapping[str, Any]]()
    searched, cursor = 0, None
    with SESSION.client() as client, show_progress() as advance:
        while True:
            page = client.search_messages(
                topic,
                pattern,
                parts=parts or _PARTS,
                ignore_case=ignore_case,
                from_time=from_time,
                to_time=to_time,
                limit=min(_PAGE, maximum - len(found)),
                cursor=cursor,
            )
            found += [message.raw for message in page.messages]
            searched, cursor = searched + page.searched, page.next
            advance(page.searched)
            if cursor is None or len(found) >= maximum:
                break
    if not found:
        raise MessageNotFound(f"no message of {topic} contains {pattern!r}: searched {searched:,}")
    print_messages(found, ("id", "timestamp", "key", "value"))
    if cursor is not None:
        notice(f"searched {searched:,} messages, there are older ones; see --max and --to-time")
