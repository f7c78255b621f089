"""``goq scheduled``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq.errors import UsageError
from goq_cli.output.message_table import for_each, print_messages
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Ids = Annotated[list[str], typer.Argument(metavar="ID…")]
_COLUMNS = ("id", "deliver_at", "priority", "tenant", "key", "value")
_CHANGED = ("id", "state", "deliver_at")
_PAGE = 1000


@app.command("list")
def list_scheduled(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1)] = 100,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what is due before.")
    ] = None,
) -> None:
    """List the messages that wait for their time, the next to be due first."""
    with SESSION.client() as client:
        found = list(islice(_scheduled(client, topic, min(maximum, _PAGE), until), maximum))
    print_messages(found, _COLUMNS)


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
def reschedule(
    ids: _Ids,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="When instead.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="D", help="Or how long from now; 0 is at once.")
    ] = None,
) -> None:
    """Give messages that wait for their time another."""
    if (at is None) == (delay is None):
        raise UsageError("say when: --at or --delay")
    deliver_at = at if at is not None else _from_now(delay or "")
    with SESSION.client() as client:
        done = for_each(ids, lambda name: client.reschedule_message(name, deliver_at).raw)
    print_messages(done, _CHANGED)


def _scheduled(
    client: Client, topic: str, limit: int, until: str | None
) -> Iterator[Mapping[str, Any]]:
    after: str | None = None
    while True:
        page = client.list_scheduled(topic, limit=limit, after=after, until=until)
        yield from [message.raw for message in page.messages]
        after = page.next
        if after is None:
            return


def _from_now(delay: str) -> str:
    from goq.units import format_duration_ms, parse_duration_ms

    return f"+{format_duration_ms(parse_duration_ms(delay, field='delay'))}"
