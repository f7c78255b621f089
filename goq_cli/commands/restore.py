"""``goq restore``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from goq_cli.output.disk_errors import disk_errors_told
from goq_cli.output.output import notice, print_answer
from goq_cli.output.progress import show_progress


def command(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="The folder of the backups, or s3://bucket/prefix."),
    ],
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="The new data folder: empty, or not there yet.")
    ],
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="As it was then, exact in each partition.")
    ] = None,
    topic: Annotated[
        list[str],
        typer.Option(metavar="A[=B]", help="Only topic A, under the name B; repeatable."),
    ] = [],  # noqa: B006 - typer reads the default, nothing writes to it
    backup: Annotated[
        str | None, typer.Option(metavar="NAME", help="See goq backup list. Default: the newest.")
    ] = None,
) -> None:
    """Make a data folder of a backup; then run goq serve --data-dir DIR.

    Leases of before are void. With --at, the default is the oldest backup that reaches that time.
    """
    from goq.backup.place import open_place
    from goq.backup.restore import RestoreOrder, restore
    from goq.storage.disk import RealDisk
    from goq.units import parse_time_us, round_size_bytes

    now_us = time.time_ns() // 1000
    at_us = None if at is None else parse_time_us(at, now_us=now_us, field="--at")
    pairs = [name.partition("=") for name in topic]
    order = RestoreOrder(backup, at_us, {name: new or name for name, _, new in pairs})
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
        notice(f"{name} has messages older than its retention.age: the first start deletes them")
    if done.missing:
        names = ", ".join(done.missing)
        text += f"\nempty, because the backup lacks it: {names}; see goq backup list {place}"
    print_answer({**done._asdict(), "data_dir": str(data_dir)}, text)
    if done.missing:
        raise typer.Exit(1)
