"""``goq schedule``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import format_time, print_answer, print_json, tell_done
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import ScheduleDescription

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def add(
    name: _Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    values: Annotated[list[str], typer.Argument(metavar="VALUE...")],
    cron: Annotated[
        str | None, typer.Option(metavar="LINE", help="Five fields, as '0 9 * * MON-FRI'.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Of --cron, as Europe/Zurich; else UTC.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="D", help="Instead of --cron: so often, as 5m.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="K")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="K=V")] = None,
    priority: Annotated[str | None, typer.Option(metavar="P", help="A lane.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="D", help="Expire after so long.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T")] = None,
) -> None:
    """Have the node publish each VALUE to TOPIC at every time of a cron line, or so often."""
    from goq.errors import UsageError

    if (cron is None) == (every is None):
        raise UsageError("say when: either --cron or --every")
    headers = None
    if header:
        for pair in header:
            if "=" not in pair:
                raise UsageError(f"--header {pair!r} is not K=V")
        headers = {pair.partition("=")[0]: pair.partition("=")[2] for pair in header}
        if len(headers) < len(header):
            raise UsageError("--header: a name is given twice")
    with SESSION.client() as client:
        made = client.create_schedule(
            name,
            topic,
            values,
            cron=cron,
            tz=tz,
            every=every,
            key=key,
            headers=headers,
            priority=priority,
            ttl=ttl,
            tenant=tenant,
        )
    tell_done(made.raw, f"schedule {name} publishes next at {format_time(made.next)}")


@app.command("list")
def list_schedules() -> None:
    """List schedules."""
    with SESSION.client() as client:
        found = client.list_schedules()
    if SESSION.json:
        print_json({"schedules": [each.raw for each in found]})
        return
    rows = [
        (
            each.name,
            each.topic,
            _timing(each),
            "paused" if each.paused else format_time(each.next) or "never",
            format_time(each.last) or "never",
            each.problem or "",
        )
        for each in found
    ]
    print_table(("name", "topic", "when", "next", "last", "problem"), rows)


@app.command()
def show(name: _Name) -> None:
    """Show a schedule with its messages."""
    with SESSION.client() as client:
        found = client.describe_schedule(name)
    lines = [
        f"{found.name}: {_timing(found)} to {found.topic}",
        f"next     {'paused' if found.paused else format_time(found.next) or 'never'}",
        f"last     {format_time(found.last) or 'never'}",
        *([f"problem  {found.problem}"] if found.problem else []),
        f"created  {format_time(found.created)} by {found.principal}",
        *(f"message  {_text(message)}" for message in found.messages),
    ]
    print_answer(found.raw, "\n".join(lines))


@app.command()
def pause(name: _Name) -> None:
    """Pause a schedule: it publishes nothing until it is resumed."""
    with SESSION.client() as client:
        found = client.pause_schedule(name)
    tell_done(found.raw, f"paused {name}")


@app.command()
def resume(name: _Name) -> None:
    """Resume a paused schedule, from its next time on."""
    with SESSION.client() as client:
        found = client.resume_schedule(name)
    tell_done(found.raw, f"schedule {name} publishes next at {format_time(found.next)}")


@app.command()
def remove(name: _Name) -> None:
    """Remove a schedule. What it has published stays."""
    with SESSION.client() as client:
        client.remove_schedule(name)
    tell_done({"removed": name}, f"removed {name}")


def _timing(found: ScheduleDescription) -> str:
    return f"every {found.every}" if found.cron is None else f"{found.cron} ({found.tz})"


def _text(message: object) -> str:
    import json

    from goq_cli.output.text import escaped

    return escaped(json.dumps(message, ensure_ascii=False))
