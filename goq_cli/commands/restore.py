"""``goq restore``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from goq_cli.output.disk_errors import disk_errors_told
from goq_cli.output.output import notice, parse_settings, print_answer, warn
from goq_cli.output.progress import show_progress
from goq_cli.session import SESSION


def command(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="The folder of the backups, or s3://bucket/prefix."),
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The new data folder: empty, or not there yet."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="As it was then, exact in each partition.")
    ] = None,
    topic: Annotated[
        list[str],
        typer.Option(metavar="A[=B]", help="Only topic A, under the name B; repeatable."),
    ] = [],
    backup: Annotated[
        str | None, typer.Option(metavar="NAME", help="See goq backup list. Default: the newest.")
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the topics, as retention.age=none."
        ),
    ] = [],
) -> None:
    """Make a data folder of a backup; then run goq serve --data-dir DIR.

    Without --data-dir a running node restores the topics of --topic A=B from its backup.to, which
    PLACE repeats. Leases of before are void. With --at, the default is the oldest backup that
    reaches that time.
    """
    from goq.backup.place import is_url
    from goq.errors import UsageError
    from goq.units import parse_time_us

    pairs = {name: new or name for name, _, new in (each.partition("=") for each in topic)}
    chosen = parse_settings(settings)
    if data_dir is None:
        if not pairs:
            raise UsageError(
                "goq restore needs --data-dir DIR, or --topic A=B to restore into a running node"
            )
        where = place if is_url(place) else str(Path(place).resolve())
        _restore_into_node(where, pairs, at, backup, chosen)
        return
    now_us = time.time_ns() // 1000
    at_us = None if at is None else parse_time_us(at, now_us=now_us, field="--at")
    _restore_folder(place, data_dir, pairs, at_us, backup, now_us, chosen)


def _restore_into_node(
    place: str,
    pairs: Mapping[str, str],
    at: str | None,
    backup: str | None,
    settings: Mapping[str, str],
) -> None:
    from goq.units import round_size_bytes

    missing: Sequence[str] = ()
    with SESSION.long_client() as client:
        for name, new_name in pairs.items():
            done = client.restore_topic(
                name, new_name, place=place, backup=backup, at=at, settings=settings
            )
            text = (
                f"{name} of backup {done.backup} restored as {done.topic}: {done.messages:,}"
                f" messages, {round_size_bytes(done.bytes)}"
            )
            if done.is_compacted:
                _warn_of_compaction(name)
            print_answer(done.raw, "\n".join([text, *_told_missing(done.missing, place)]))
            missing = [*missing, *done.missing]
    if missing:
        raise typer.Exit(1)


def _warn_of_compaction(topic: str) -> None:
    warn(
        f"compaction removed messages of {topic} from before that time: a key whose newest message"
        " of then was superseded later is missing; an older backup may have it"
    )


def _told_missing(missing: Sequence[str], place: str) -> list[str]:
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"empty, because the backup lacks it: {names}; see goq backup list {place}"]


def _restore_folder(
    place: str,
    data_dir: Path,
    pairs: Mapping[str, str],
    at_us: int | None,
    backup: str | None,
    now_us: int,
    settings: Mapping[str, str],
) -> None:
    from goq.backup.place import open_place
    from goq.backup.restore import RestoreOrder, restore
    from goq.storage.disk import RealDisk
    from goq.units import round_size_bytes

    order = RestoreOrder(backup, at_us, pairs, settings)
    with disk_errors_told(data_dir), show_progress(unit="bytes") as advance:
        opened = open_place(RealDisk(), place)
        done = restore(opened, data_dir, order, now_us, advance)
    text = (
        f"backup {done.name} restored to {data_dir}: {done.topics} topics, {done.messages:,}"
        f" messages, {round_size_bytes(done.bytes)}"
    )
    if done.schedules:
        notice(f"{done.schedules} schedules: the node runs them once it is started")
    for name in done.aged:
        warn(
            f"{name} has messages older than its retention.age, or archived ones older than its"
            " retention.total_age: the node deletes them, at once or when their segment is sealed;"
            " for other ages: --set retention.age=none, --set retention.total_age=none"
        )
    for name in done.compacted:
        _warn_of_compaction(name)
    lines = [text, *_told_missing(done.missing, place)]
    print_answer({**done._asdict(), "data_dir": str(data_dir)}, "\n".join(lines))
    if done.missing:
        raise typer.Exit(1)
