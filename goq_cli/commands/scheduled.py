"""``goq scheduled``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq_cli.output.output import print_messages
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_COLUMNS = ("id", "deliver_at", "priority", "tenant", "key", "value")
_PAGE = 1000


@app.command("list")
def list_scheduled(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    maximum: Annotated[int, typer.Option("--max", metavar="N", min=1)] = 100,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only messages due before.")
    ] = None,
) -> None:
    """List scheduled messages, the next due first."""
    with SESSION.client() as client:
        found = list(islice(_scheduled(client, topic, min(maximum, _PAGE), until), maximum))
    print_messages(found, _COLUMNS)


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
