"""``goq dlq``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from goq_cli.dead_letter_filter import (
    PORTION,
    Cause,
    DryRun,
    From,
    Group,
    Ids,
    Key,
    Reason,
    ReasonIs,
    To,
    Topic,
    Yes,
    cell,
    check_ids,
    letters_of,
    tells_count,
    wanted_by,
)
from goq_cli.output.output import EXIT_IN_PART, confirm, notice, print_json, warn
from goq_cli.output.progress import show_progress
from goq_cli.output.table import print_table
from goq_cli.output.text import shown_field
from goq_cli.session import SESSION

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_LEFT = {
    "looped": "they were put back too often already; --force puts them back again",
    "lost": "they cannot be read any more",
    "without_origin": "they were published there and never failed; --to TOPIC says where they go",
}
_PAUSE_S = 0.25
"""About how far apart the portions of a paced redrive are."""
_COLUMNS = (
    "id",
    "origin",
    "died_at",
    "group",
    "attempts",
    "cause",
    "reason",
    "key",
    "redrives",
)
_ROWS = ("failures", "earlier")
"""Fields that are tables of their own."""


@app.command("list")
def list_letters(
    topic: Topic,
    group: Group = None,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    cause: Cause = None,
    key: Key = None,
    from_time: From = None,
    to_time: To = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 100,
) -> None:
    """List dead letters by partition, oldest first."""
    wanted = wanted_by(group, reason, reason_is, cause, key, from_time, to_time)
    with SESSION.client() as client:
        found = list(letters_of(client, topic, limit, wanted))
    if SESSION.json:
        print_json({"messages": found})
        return
    print_table(_COLUMNS, [[cell(letter, name) for name in _COLUMNS] for letter in found])
    if len(found) == limit:
        notice(f"there may be more: --limit is {limit}")


@app.command()
def show(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the dead letter, or its former id.")
    ],
) -> None:
    """Show a dead letter with its history of attempts."""
    from goq.errors import MessageNotFound
    from goq.model import MessageId

    topic = MessageId.parse(message_id).topic
    with SESSION.client() as client:
        found = list(letters_of(client, topic, 1, {}, [message_id]))
    if not found:
        raise MessageNotFound(f"there is no dead letter {message_id}; see: goq dlq list {topic}")
    [letter] = found
    if SESSION.json:
        print_json(letter)
        return
    names = [name.removesuffix("_base64") for name in letter if name not in _ROWS]
    details = {name: shown_field(letter, name) for name in names}
    if isinstance(headers := letter.get("headers"), dict):
        del details["headers"]
        details |= {f"header {name}": value for name, value in headers.items()}
    print_table(("field", "value"), list(details.items()))
    _print_rows(("time", "cause", "consumer", "reason"), letter.get("failures", []))
    columns = ("id", "group", "attempts", "cause", "reason", "time")
    _print_rows(columns, letter.get("earlier", []))


@app.command()
def redrive(
    topic: Topic,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Into this topic; default their own."),
    ] = None,
    group: Group = None,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    cause: Cause = None,
    key: Key = None,
    from_time: From = None,
    to_time: To = None,
    ids: Ids = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many; default all.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="Messages a second at most.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also what was redriven 10 times.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Redrive dead letters to their topic, for the group that they failed in.

    Exit code 1: some that matched stay, and stderr says why.
    """
    wanted = wanted_by(group, reason, reason_is, cause, key, from_time, to_time)
    total = dict.fromkeys(("matched", "redriven", "looped", "lost", "without_origin"), 0)
    after: str | None = None
    portion = PORTION if rate is None else max(1, min(PORTION, round(rate * _PAUSE_S)))

    def matched() -> int:
        """Return how many messages a dry run would redrive."""
        count, place = 0, None
        while limit is None or count < limit:
            answer = client.redrive_dead_letters(
                topic,
                to=to,
                max_messages=PORTION,
                after=place,
                ids=ids or (),
                dry_run=True,
                force=force,
                **wanted,
            )
            count, place = count + answer.redriven, answer.next
            if place is None:
                break
        return count if limit is None else min(count, limit)

    with (
        tells_count(total, "redriven"),
        SESSION.long_client() as client,
        show_progress(shown=not dry_run, total=matched) as advance,
    ):
        while limit is None or total["redriven"] < limit:
            left = portion if limit is None else min(portion, limit - total["redriven"])
            began_s = time.monotonic()
            answer = client.redrive_dead_letters(
                topic,
                to=to,
                max_messages=left,
                after=after,
                ids=ids or (),
                dry_run=dry_run,
                force=force,
                **wanted,
            )
            for name in total:
                total[name] += getattr(answer, name)
            advance(answer.redriven)
            after = answer.next
            if after is None:
                break
            if rate is not None and not dry_run:
                due_s = began_s + answer.redriven / rate
                time.sleep(max(0.0, due_s - time.monotonic()))
    _print_total({"dry_run": dry_run, **total})
    for name, why in _LEFT.items():
        if total[name]:
            warn(f"{total[name]:,} stay: {why}")
    check_ids(topic, ids, limit, total["matched"])
    if dry_run:
        notice("nothing was changed")
    elif any(total[name] for name in _LEFT):
        raise typer.Exit(EXIT_IN_PART)


@app.command()
def purge(
    topic: Topic,
    group: Group = None,
    reason: Reason = None,
    reason_is: ReasonIs = None,
    cause: Cause = None,
    key: Key = None,
    from_time: From = None,
    to_time: To = None,
    ids: Ids = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many; default all.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete dead letters."""
    wanted = wanted_by(group, reason, reason_is, cause, key, from_time, to_time)
    is_filtered = any(value is not None for value in wanted.values())
    which = "these" if ids or is_filtered else "all"
    if not dry_run:
        confirm(f"Purge {which} dead letters of {topic}?", yes)
    total = {"matched": 0, "purged": 0}
    after: str | None = None
    with tells_count(total, "purged"), SESSION.client() as client:
        while limit is None or total["purged"] < limit:
            left = PORTION if limit is None else min(PORTION, limit - total["purged"])
            answer = client.purge_dead_letters(
                topic, max_messages=left, after=after, ids=ids or (), dry_run=dry_run, **wanted
            )
            for name in total:
                total[name] += getattr(answer, name)
            after = answer.next
            if after is None:
                break
    _print_total({"dry_run": dry_run, **total})
    check_ids(topic, ids, limit, total["matched"])
    if dry_run:
        notice("nothing was changed")


def _print_rows(columns: Sequence[str], found: Sequence[Mapping[str, Any]]) -> None:
    if found:
        print_table(columns, [[row.get(c) for c in columns] for row in found])


def _print_total(total: Mapping[str, Any]) -> None:
    if SESSION.json:
        print_json(total)
        return
    counts = {name: value for name, value in total.items() if name != "dry_run"}
    print_table(list(counts), [list(counts.values())])
