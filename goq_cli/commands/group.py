"""``goq group``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import confirm, format_time, notice, parse_settings, print_json, warn
from goq_cli.output.table import print_table
from goq_cli.session import SESSION
from goq_cli.suggestion import new_group_note

if TYPE_CHECKING:
    from goq.client import (
        GroupDescription,
        GroupMembership,
        IncompleteProgress,
        PartitionHandover,
    )

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_Group = Annotated[str, typer.Argument(metavar="GROUP")]
_Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The group's topic.")]
_COUNTS = ("lag", "ready", "leased", "retry", "blocked", "scheduled", "dead")
_COLUMNS = ("topic", "group", *_COUNTS, "oldest_ready_ms", "members")

_MOVES_SHOWN = 8


@app.command("list")
def list_groups(
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Default: all topics.")] = None,
) -> None:
    """List groups with their lag."""
    with SESSION.client() as client:
        names = [topic] if topic else [t.name for t in client.list_topics()]
        found = [(name, group) for name in names for group in client.list_groups(name)]
    if SESSION.json:
        print_json({"groups": [{"topic": name, **group.raw} for name, group in found]})
    else:
        print_table(_COLUMNS, [_row(name, group) for name, group in found])


@app.command()
def show(
    group: _Group,
    topic: _Topic,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="The state at this time.")
    ] = None,
) -> None:
    """Show a group: lag, in flight, retries, oldest waiting, settings, members.

    With --as-of, the state then: rebuilt from the logs, also for a group deleted since.
    """
    with SESSION.client() as client:
        found = client.describe_group(topic, group, as_of=as_of)
        membership = None if as_of is not None else client.describe_members(topic, group)
    if SESSION.json:
        print_json(found.raw if membership is None else {**found.raw, "membership": membership.raw})
        return
    _print_progress(topic, found)
    if membership is None:
        _print_incomplete(found.incomplete)
        return
    _print_settings(found)
    if membership.history:
        _print_membership(membership)


@app.command("set")
def set_settings(
    group: _Group,
    topic: _Topic,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE…")],
) -> None:
    """Override settings of the topic for a group; creates the group if needed."""
    pairs = parse_settings(settings)
    with SESSION.client() as client:
        found = client.set_group_config(topic, group, pairs)
    if SESSION.json:
        print_json(found.raw)
    else:
        _print_settings(found)


@app.command()
def reset(
    group: _Group,
    topic: _Topic,
    to: Annotated[str, typer.Option(help="earliest, latest, an offset (any number), or a time.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the effect.")] = False,
) -> None:
    """Reset a group to another position; its leases become void.

    A group that does not exist begins there.
    """
    with SESSION.client() as client:
        note = new_group_note(client, topic, group)
        answer = client.reset_group(topic, group, to=to, dry_run=dry_run)
    if note is not None:
        warn(note)
    if SESSION.json:
        print_json(answer.raw)
        return
    columns = ("partition", "cursor", "to", "redelivers", "skips", "voids")
    print_table(columns, [[getattr(p, c) for c in columns] for p in answer.partitions])
    if dry_run:
        notice("nothing was changed")


@app.command()
def delete(
    group: _Group,
    topic: _Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a group; used again, it starts at the beginning of the log."""
    confirm(f"Delete group {group} of {topic} and its progress?", yes)
    with SESSION.client() as client:
        client.delete_group(topic, group)
    if SESSION.json:
        print_json({"deleted": group, "topic": topic})
    else:
        notice(f"deleted {group}")


def _row(topic: str, group: GroupDescription) -> list[object]:
    members = ",".join(m.consumer or "-" for m in group.members)
    cells = [getattr(group, name) for name in _COUNTS]
    return [topic, group.group, *cells, group.oldest_ready_age_ms, members]


def _print_progress(topic: str, group: GroupDescription) -> None:
    if group.as_of is not None:
        print_table(("as_of",), [[format_time(group.as_of)]])
    print_table(_COLUMNS, [_row(topic, group)])
    ends = ("end",) if any(p.end is not None for p in group.partitions) else ()
    columns = ("partition", "cursor", *ends, *_COUNTS)
    print_table(columns, [[getattr(p, c) for c in columns] for p in group.partitions])
    if group.members:
        held = ("consumer", "leased")
        print_table(held, [[m.consumer or "-", m.leased] for m in group.members])


def _print_incomplete(reasons: Sequence[IncompleteProgress]) -> None:
    if reasons:
        columns = ("partition", "from", "to", "incomplete")
        rows = [
            [r.partition, format_time(r.from_time), format_time(r.to_time), r.reason]
            for r in reasons
        ]
        print_table(columns, rows)


def _print_settings(group: GroupDescription) -> None:
    print_table(("setting", "value"), [list(pair) for pair in group.settings.items()])


def _print_membership(membership: GroupMembership) -> None:
    from goq.units import format_duration_ms

    print_table(
        ("consumer", "partitions", "revoking", "last_seen", "session_timeout"),
        [
            [
                f"{member.consumer}/{member.session}" if member.session else member.consumer,
                _numbers(member.partitions),
                _numbers(member.revoking),
                format_time(member.last_seen),
                format_duration_ms(member.session_timeout_ms),
            ]
            for member in membership.members
        ],
    )
    print_table(
        ("time", "generation", "reason", "consumers", "moves"),
        [
            [
                format_time(change.time),
                change.generation,
                change.reason,
                ",".join(change.consumers),
                _moves(change.moves),
            ]
            for change in membership.history
        ],
    )


def _numbers(partitions: Sequence[int]) -> str:
    return ",".join(map(str, partitions))


def _moves(moves: Sequence[PartitionHandover]) -> str:
    shown = [f"{m.partition}:{m.source or '-'}>{m.target or '-'}" for m in moves[:_MOVES_SHOWN]]
    more = len(moves) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more else "")
