"""The modes of a replay: to stdout, into a topic, to a group, or a dry run."""

from __future__ import annotations

import os
import shlex
import string
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

from goq.errors import GoqError, UsageError
from goq.units import format_time_us, parse_time_us
from goq_cli.output.log_share import LogShare
from goq_cli.output.output import notice, print_json, warn
from goq_cli.output.progress import show_progress
from goq_cli.output.table import print_table
from goq_cli.rate import RateLimiter
from goq_cli.session import SESSION
from goq_cli.suggestion import new_group_note

if TYPE_CHECKING:
    from goq.client import Client, DamagedRange
    from goq.client.replay_plan import Replay
    from goq_cli.output.message_format import Writer

_GROUP_COLUMNS = ("partition", "cursor", "to", "end", "redelivers", "skips", "withholds", "voids")

_SHOWN_EVERY = 1000
_PLAIN = frozenset(string.ascii_letters + string.digits)


@dataclass(frozen=True, slots=True)
class ReplayBounds:
    """The bounds of a replay, as written on the command line."""

    topic: str
    from_time: str | None
    to_time: str | None
    from_offset: int | None
    to_offset: int | None
    partition: int | None
    key: str | None
    include_deleted: bool
    as_of: str | None

    def resolved(self, client: Client) -> Replay:
        """Return the replay with absolute bounds, by the node's clock."""
        return client.replay(
            self.topic,
            from_time=self.from_time,
            to_time=self.to_time,
            from_offset=self.from_offset,
            to_offset=self.to_offset,
            partition=self.partition,
            key=None if self.key is None else os.fsencode(self.key),
            include_deleted=self.include_deleted,
            as_of=self.as_of,
        )


class ReplayDamage:
    """Reports messages that cannot be read; the run then fails in part."""

    def __init__(self) -> None:
        self._met = False

    def tell(self, damaged: DamagedRange) -> None:
        """Report damaged messages."""
        self._met = True
        sys.stderr.write(
            f"goq: {damaged.topic}:{damaged.partition}: offsets {damaged.start_offset} to"
            f" {damaged.end_offset - 1} are damaged and cannot be read; see: goq doctor\n"
        )

    def check(self) -> None:
        """Exit with code 1 if there was damage."""
        if self._met:
            raise typer.Exit(1)


def warn_of_compaction(client: Client, topic: str) -> None:
    """Warn that a replay to a time lacks values, if the topic is compacted."""
    with suppress(GoqError):  # the replay itself tells what it may not, or cannot, do
        if client.describe_topic(topic).settings.get("cleanup") == "compact":
            warn(
                f"{topic} is compacted: a key that was updated since that time lacks the value that"
                " it had then"
            )


def print_messages(
    client: Client, replay: Replay, writer: Writer, pace: RateLimiter, maximum: int | None
) -> None:
    """Print the messages of a replay, then their number on stderr."""
    damage, count = ReplayDamage(), 0
    messages = client.read_replay(replay, on_damage=damage.tell)
    share = LogShare(client, replay)
    shown = not sys.stdout.isatty()
    with (
        closing(messages),
        show_progress(shown=shown, total=share.total, position=share.position) as advance,
    ):
        for message in messages:
            pace.wait(before_sleep=writer.flush)
            writer.write(message)
            count += 1
            if count == maximum:
                break
            if count % _SHOWN_EVERY == 0:
                share.reach(message.partition, message.offset)
                advance(_SHOWN_EVERY)
    writer.flush()
    _tell(f"{_messages(count)} replayed")
    damage.check()


def count_only(client: Client, replay: Replay, into: str | None, maximum: int | None) -> None:
    """Print the number of messages of a replay, by partition."""
    damage, counts = ReplayDamage(), dict[int, int]()
    for message in islice(client.read_replay(replay, on_damage=damage.tell), maximum):
        counts[message.partition] = counts.get(message.partition, 0) + 1
    total = sum(counts.values())
    if SESSION.json:
        print_json({**_described(replay), "into": into, "dry_run": True, "messages": total})
    else:
        print_table(("partition", "messages"), sorted(counts.items()))
        _tell(f"{_messages(total)} {_range(replay)} would be replayed; nothing was changed")
    damage.check()


def copy_into(
    client: Client, replay: Replay, into: str, rate: str | None, pace: RateLimiter
) -> None:
    """Publish a replay to another topic; print the command to resume it first."""
    _tell(f"replaying {replay.topic} {_range(replay)} into {into}; to go on if it is cut short:")
    _tell(f"  {resume_command(replay, into, rate)}")
    damage = ReplayDamage()
    options = {} if pace.batch is None else {"batch": min(pace.batch, 1000)}
    share = LogShare(client, replay)
    with show_progress(total=share.total, position=share.position) as advance:
        copied = client.replay_into(
            replay,
            into,
            before_send=pace.wait,
            on_stored=advance,
            on_reached=share.reach,
            on_damage=damage.tell,
            **options,
        )
    if SESSION.json:
        print_json({**_described(replay), "into": into, **copied._asdict()})
    else:
        before = f", {copied.known:,} were there already" if copied.known else ""
        _tell(f"{_messages(copied.stored)} stored in {into}{before}")
    damage.check()


def rewind_group(client: Client, bounds: ReplayBounds, group: str, *, dry_run: bool) -> None:
    """Reset a group to the start of a replay, with a stop at its end; print the change."""
    for start, end, what in (
        (bounds.from_time, bounds.from_offset, "--from"),
        (bounds.to_time, bounds.to_offset, "--to"),
    ):
        if start is not None and end is not None:
            raise UsageError(f"a group takes {what}-time or {what}-offset, not both")
    note = new_group_note(client, bounds.topic, group)
    answer = client.reset_group(
        bounds.topic,
        group,
        to=_place(bounds.from_time, bounds.from_offset),
        end=_place(bounds.to_time, bounds.to_offset),
        partition=bounds.partition,
        dry_run=dry_run,
    )
    if note is not None:
        warn(note)
    if SESSION.json:
        print_json(answer.raw)
        return
    print_table(
        _GROUP_COLUMNS, [[getattr(p, c) for c in _GROUP_COLUMNS] for p in answer.partitions]
    )
    if dry_run:
        notice("nothing was changed")


def resume_command(replay: Replay, into: str, rate: str | None = None) -> str:
    """Return the command that resumes a replay: the same, with absolute bounds."""
    words = ["goq", *SESSION.repeated, "replay", replay.topic]
    options: dict[str, Any] = {
        "--from-time": _written(replay.from_time_us),
        "--to-time": _written(replay.to_time_us),
        "--from-offset": replay.from_offset,
        "--to-offset": replay.to_offset,
        "--partition": replay.partition,
        "--key": None if replay.key is None else os.fsdecode(replay.key),
        "--as-of": _written(replay.as_of_us),
        "--into": into,
        "--rate": rate,
    }
    for name, value in options.items():
        if value is not None:
            text = str(value)
            words += [f"{name}={text}"] if text.startswith("-") else [name, text]
    words += ["--include-deleted"] if replay.include_deleted else []
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    """Return a word as it is typed; bytes that are not UTF-8 as bash, zsh and ksh write them."""
    data = os.fsencode(word)
    try:
        return shlex.quote(data.decode())
    except UnicodeDecodeError:
        coded = (chr(b) if chr(b) in _PLAIN else f"\\x{b:02x}" for b in data)
        return f"$'{''.join(coded)}'"


def _place(time: str | None, offset: int | None) -> Any:
    """Return a bound as a reset takes it: there a bare number is an offset, not milliseconds."""
    if time is not None and time.isascii() and time.isdigit():
        return format_time_us(parse_time_us(time, now_us=0))
    return offset if time is None else time


def _written(time_us: int | None) -> str | None:
    return None if time_us is None else format_time_us(time_us)


def _range(replay: Replay) -> str:
    start = _written(replay.from_time_us) or f"offset {replay.from_offset}"
    end = _written(replay.to_time_us) or f"offset {replay.to_offset}"
    return f"from {start} to {end}"


def _described(replay: Replay) -> dict[str, Any]:
    return {
        "topic": replay.topic,
        "from_time": _written(replay.from_time_us),
        "to_time": _written(replay.to_time_us),
        "from_offset": replay.from_offset,
        "to_offset": replay.to_offset,
    }


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
