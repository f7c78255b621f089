"""``goq backup``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from goq_cli.output.disk_errors import disk_errors_told
from goq_cli.output.output import print_answer, print_json
from goq_cli.output.progress import show_progress
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.backup.place import BackupPlace

app = typer.Typer(rich_markup_mode=None)
Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="The folder of the backups, or s3://bucket/prefix.")
]
_KEEP_MS_MAX = 36_500 * 86_400_000
_COLUMNS = ("name", "time", "topics", "messages", "bytes", "missing", "damage")


class BackupDone(NamedTuple):
    """A finished backup."""

    name: str
    topics: int
    messages: int
    bytes: int
    copied_bytes: int
    missing: Sequence[str] = ()


@app.callback(invoke_without_command=True)
def back_up(
    context: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The folder of the backups, or s3://bucket/prefix."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The data folder of a stopped node.")
    ] = None,
) -> None:
    """Back up a node; list, verify and prune backups.

    A running node backs itself up to the folder of its setting backup.to. What an earlier backup
    has in PLACE already is not copied again. Offline partitions are named; exit 1 then.
    """
    if context.invoked_subcommand is not None:
        return
    from goq.backup.place import is_url
    from goq.units import round_size_bytes

    where = to if to is None or is_url(to) else str(Path(to).resolve())
    if data_dir is not None:
        done = _back_up_stopped(data_dir, where)
    else:
        with SESSION.long_client() as client:
            found = client.create_backup(where)
        done = BackupDone(
            found.name,
            found.topics,
            found.messages,
            found.bytes,
            found.copied_bytes,
            found.missing,
        )
    text = (
        f"backup {done.name}: {done.topics} topics, {done.messages:,} messages,"
        f" {round_size_bytes(done.bytes)}, of which {round_size_bytes(done.copied_bytes)} are new"
    )
    if done.missing:
        text += f"\nnot in it, because they are offline: {', '.join(done.missing)}"
    print_answer(done._asdict(), text)
    if done.missing:
        raise typer.Exit(1)


def _back_up_stopped(data_dir: Path, where: str | None) -> BackupDone:
    from goq.backup.backup import back_up_folder
    from goq.errors import UsageError
    from goq.storage.disk import RealDisk

    if where is None:
        raise UsageError("goq backup --data-dir needs --to PLACE; see goq backup --help")
    with disk_errors_told(where), show_progress(unit="bytes") as advance:
        now_us = time.time_ns() // 1000
        return BackupDone(*back_up_folder(RealDisk(), data_dir, where, now_us, advance))


@app.command("list")
def list_backups(place: Place) -> None:
    """List backups, oldest first; exit 7 if a manifest is damaged."""
    from goq.units import format_time_us, round_size_bytes

    with disk_errors_told(place):
        backups = _open(place).all()
    rows = []
    for found in backups:
        manifest = found.manifest
        rows.append(
            {
                "name": found.name,
                "time": None if manifest is None else format_time_us(manifest.time_us),
                "topics": None if manifest is None else len(manifest.topics),
                "messages": None if manifest is None else manifest.message_count,
                "bytes": None if manifest is None else manifest.size_bytes,
                "missing": None if manifest is None else ", ".join(manifest.missing) or None,
                "damage": found.damage or None,
            }
        )
    if SESSION.json:
        print_json({"backups": rows})
    else:
        for row in rows:
            size = row["bytes"]
            row["bytes"] = round_size_bytes(size) if isinstance(size, int) else None
        print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    if any(row["damage"] for row in rows):
        raise typer.Exit(7)


@app.command()
def verify(
    place: Place,
    name: Annotated[
        str | None, typer.Option(metavar="BACKUP", help="Only this one; see goq backup list.")
    ] = None,
) -> None:
    """Read every byte of the backups, and name what is damaged or missing; exit 1 for any."""
    from goq.backup.inspection import verify_place
    from goq.units import round_size_bytes

    with disk_errors_told(place), show_progress(unit="bytes") as advance:
        report = verify_place(_open(place), name, advance)
    state = f"{len(report.problems)} problems" if report.problems else "sound"
    checked = (
        f"{report.backups} backups, {report.objects} objects, {round_size_bytes(report.bytes)}"
    )
    lines = [*report.problems, f"{checked}: {state}"]
    print_answer({"sound": not report.problems, **report._asdict()}, "\n".join(lines))
    if report.problems:
        raise typer.Exit(1)


@app.command()
def prune(
    place: Place,
    keep: Annotated[
        str, typer.Option(metavar="DURATION", help="Backups younger than this stay: 7d.")
    ],
) -> None:
    """Remove old backups, and the objects that no other one needs. The newest backup stays."""
    from goq.backup.inspection import prune_place
    from goq.config.types import duration
    from goq.units import round_size_bytes

    keep_us = duration(0, _KEEP_MS_MAX).parse(keep, "--keep") * 1000
    with disk_errors_told(place):
        done = prune_place(_open(place), time.time_ns() // 1000 - keep_us)
    freed = round_size_bytes(done.bytes)
    print_answer(
        done._asdict(), f"removed {done.backups} backups and {done.objects} objects, {freed}"
    )


def _open(place: str) -> BackupPlace:
    from goq.backup.place import open_place
    from goq.errors import NotFound
    from goq.storage.disk import RealDisk

    opened = open_place(RealDisk(), place)
    if not opened.is_there:
        raise NotFound(f"{place} has no backups")
    return opened
