"""Output of ``goq export``: the rows and files of each table, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goq_cli.output.output import notice, print_json, warn
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.export.compaction import MergedFiles
    from goq.pipeline.export.export import ExportResult

_NAMED = 10
_COLUMNS = ("topic", "table", "files", "rows", "bytes", "missing")


def print_export(
    results: dict[tuple[str, str], ExportResult],
    registered: dict[str, int] | None,
    merged: list[tuple[str, MergedFiles]] | None,
) -> None:
    """Print what was exported, registered in a catalog and merged, None for what was not asked."""
    if SESSION.json:
        found: dict[str, object] = {
            "exports": [_row(*named, done) for named, done in results.items()]
        }
        if registered is not None:
            found["registered"] = registered
        if merged is not None:
            found["compacted"] = [{"topic": topic, **done._asdict()} for topic, done in merged]
        print_json(found)
        return
    print_table(_COLUMNS, [(*named, *done[:4]) for named, done in results.items()])
    for (topic, table), done in results.items():
        if done.missing:
            notice(f"{topic}: {done.missing} {table} are damaged, or were deleted before")
        if done.fields_left_out:
            named = ", ".join(done.fields_left_out[:_NAMED])
            more = len(done.fields_left_out) - _NAMED
            rest = f" and {more} more" if more > 0 else ""
            warn(f"{topic}: fields without a column: {named}{rest}")
    if registered is not None:
        counts = ", ".join(f"{table} {files}" for table, files in registered.items())
        notice(f"files registered: {counts}")
    for topic, each in merged or ():
        notice(f"{topic}: {each.files} files of {each.table} merged into {each.into}")


def _row(topic: str, table: str, done: ExportResult) -> dict[str, object]:
    return {"topic": topic, "table": table, **done._asdict()}
