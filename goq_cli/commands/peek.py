"""``goq peek``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq.errors import UsageError
from goq_cli.output.message_format import message_fields
from goq_cli.output.output import print_messages
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client

STATES = (
    "ready",
    "blocked",
    "leased",
    "retry",
    "scheduled",
    "expired",
    "dead",
    "done",
    "cancelled",
)
_COLUMNS = ("id", "timestamp", "attempt", "key", "value")
_TIMES = {
    "leased": "lease_until",
    "retry": "due",
    "scheduled": "deliver_at",
    "expired": "expires_at",
}
_PAGE = 1000


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    group: Annotated[str | None, typer.Option(metavar="G", help="Messages of this group.")] = None,
    state: Annotated[str | None, typer.Option(help=f"With --group: {', '.join(STATES)}.")] = None,
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1)] = 10,
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest in the log, the newest first.")
    ] = False,
) -> None:
    """Show messages without leasing them: of a group by state, or the oldest in the log."""
    if newest and group is not None:
        raise UsageError("--newest goes without --group")
    if group is None and state is not None:
        raise UsageError("--state needs a --group")
    chosen = state or STATES[0]
    found: Sequence[Mapping[str, Any]]
    with SESSION.client() as client:
        if group is not None:
            found = list(islice(_peeked(client, topic, group, chosen, maximum), maximum))
        elif newest:
            found = [message_fields(m) for m in client.read_log(topic, last=maximum)][::-1]
        else:
            log = client.read_log(topic)
            found = [message_fields(message) for message in islice(log, maximum)]
    extra = (_TIMES[chosen],) if group is not None and chosen in _TIMES else ()
    print_messages(found, (*_COLUMNS[:3], *extra, *_COLUMNS[3:]))


def _peeked(
    client: Client, topic: str, group: str, state: str, maximum: int
) -> Iterator[Mapping[str, Any]]:
    after: str | None = None
    while True:
        limit = min(maximum, _PAGE)
        page = client.peek(topic, group, state=state, limit=limit, after=after)
        yield from [message.raw for message in page.messages]
        after = page.next
        if after is None:
            return
