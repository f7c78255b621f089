"""``goq replay``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from goq.errors import UsageError
from goq_cli.output.message_format import DEFAULT_FORMAT, make_writer
from goq_cli.rate import RateLimiter, parse_rate
from goq_cli.replay_modes import (
    ReplayBounds,
    copy_into,
    count_only,
    print_messages,
    rewind_group,
    warn_of_compaction,
)
from goq_cli.session import SESSION


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_time: Annotated[
        str | None, typer.Option(metavar="T", help="Messages appended at this time or later.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="T", help="Messages appended before this time; default now."),
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="From this offset on.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Up to this offset, exclusive.")
    ] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0)] = None,
    key: Annotated[str | None, typer.Option(metavar="K", help="Only messages of this key.")] = None,
    include_deleted: Annotated[
        bool, typer.Option("--include-deleted", help="Include archived messages.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of", "--from-snapshot", metavar="TIME", help="The log as retained at this time."
        ),
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Publish to this topic, each exactly once.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="G", help="Rewind this group; stop it at the end.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N[/s]", help="Messages a second at most.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    maximum: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="End after N messages.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="F", help="As of goq consume.")
    ] = DEFAULT_FORMAT,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print values only, unchanged, a line each.")
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="With --raw: end values with NUL.")
    ] = False,
) -> None:
    """Replay a range of the log: to stdout, into a topic, or to a group.

    The range starts at --from-time or --from-offset, and ends at --to-time or --to-offset. Without
    an end, output and copies stop at the current end, and a group continues with new messages.
    """
    bounds = ReplayBounds(
        topic,
        from_time,
        to_time,
        from_offset,
        to_offset,
        partition,
        key,
        include_deleted,
        as_of,
    )
    if from_time is None and from_offset is None:
        raise UsageError("say where to begin: --from-time or --from-offset")
    if into is not None and group is not None:
        raise UsageError("--into and --group are two ways to replay: give one of them")
    if (into is not None or group is not None) and (
        maximum is not None or raw or null or form != DEFAULT_FORMAT
    ):
        raise UsageError("--max, --format, --raw and --null are for what goes to stdout")
    pace = RateLimiter(None if rate is None else parse_rate(rate), time.monotonic, time.sleep)
    if group is not None:
        if key is not None or include_deleted or as_of is not None or rate is not None:
            raise UsageError("--key, --include-deleted, --as-of and --rate are not for a --group")
        with SESSION.long_client() as client:
            rewind_group(client, bounds, group, dry_run=dry_run)
        return
    with SESSION.long_client() as client:
        replay = bounds.resolved(client)
        if to_time is not None or as_of is not None:
            warn_of_compaction(client, topic)
        if dry_run:
            count_only(client, replay, into, maximum)
        elif into is not None:
            copy_into(client, replay, into, rate, pace)
        else:
            writer = make_writer(form, raw, b"\0" if null else b"\n")
            print_messages(client, replay, writer, pace, maximum)
