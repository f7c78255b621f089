"""``goq trace``."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goq.errors import MessageNotFound, UsageError
from goq_cli.output.output import notice, parse_settings, print_json
from goq_cli.output.table import print_table
from goq_cli.output.trace import Style, TimelinePrinter
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.client import Client, MessageTrace

Json = Mapping[str, Any]
Step = tuple[str, str, str, str]
"""Its time, its name, the message's id and the group: what a step is known by."""
_FOLLOW_WAIT_MS = 20_000
_PORTION = 100


@dataclass(frozen=True, slots=True)
class TraceSelector:
    """The selector of messages of a topic: key, dedup id or header."""

    key: str | None
    dedup_id: str | None
    header: str | None
    from_time: str | None
    to_time: str | None

    @property
    def named(self) -> int:
        """The number of given selectors: it must be one."""
        return 3 - (self.key, self.dedup_id, self.header).count(None)

    def arguments(self) -> dict[str, Any]:
        """Return the selector as arguments of the client."""
        header = None
        if self.header is not None:
            [header] = parse_settings([self.header]).items()
        return {
            "key": None if self.key is None else os.fsencode(self.key),
            "dedup_id": self.dedup_id,
            "header": header,
            "from_time": self.from_time,
            "to_time": self.to_time,
        }


def command(
    what: Annotated[
        str, typer.Argument(metavar="ID|TOPIC", help="topic:partition:offset, or where to look.")
    ],
    key: Annotated[
        str | None, typer.Option(metavar="K", help="Messages of TOPIC with this key.")
    ] = None,
    dedup_id: Annotated[str | None, typer.Option(metavar="D", help="With this dedup id.")] = None,
    header: Annotated[str | None, typer.Option(metavar="K=V", help="With this header.")] = None,
    from_time: Annotated[
        str | None, typer.Option(metavar="T", help="Published then or later.")
    ] = None,
    to_time: Annotated[str | None, typer.Option(metavar="T", help="Published before then.")] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Messages at most; default 10.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new steps as they come.")
    ] = False,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send OpenTelemetry spans instead."),
    ] = None,
) -> None:
    """Print the life of a message, step by step.

    Select one message by id, or a topic's messages by key, dedup id or header, newest first.
    """
    selector = TraceSelector(key, dedup_id, header, from_time, to_time)
    is_id = what.count(":") >= 2
    _check(what, selector, limit, is_id=is_id)
    if follow and otlp is not None:
        raise UsageError("--follow and --otlp exclude each other")
    if follow and limit is not None:
        raise UsageError("--follow follows one message, the newest: it goes without --limit")
    with SESSION.client() as client:
        if follow:
            _follow(client, what if is_id else _newest(client, what, selector))
            return
        cursor: str | None = None
        if is_id:
            traces = [client.get_trace(what)]
            answer = traces[0].raw
        else:
            traces, cursor = _search(client, what, selector, limit or 10)
            answer = {"traces": [trace.raw for trace in traces], "next": cursor}
    if otlp is not None:
        _export(traces, otlp)
    elif SESSION.json:
        print_json(answer)
    else:
        _print(traces)
    if cursor is not None:
        notice(f"there may be more: --limit is {limit or 10}")


def _check(what: str, selector: TraceSelector, limit: int | None, *, is_id: bool) -> None:
    if is_id:
        if limit is not None or selector != TraceSelector(None, None, None, None, None):
            raise UsageError(f"{what} is one message: --key and the like go with a topic")
    elif selector.named != 1:
        raise UsageError(
            f"say which messages of {what}, by one of --key, --dedup-id and --header; or give an"
            f" id, as {what}:0:123"
        )
    selector.arguments()


def _search(
    client: Client, topic: str, selector: TraceSelector, limit: int
) -> tuple[list[MessageTrace], str | None]:
    """Return the traces of up to ``limit`` messages, and the cursor of the next page, if any."""
    traces: list[MessageTrace] = []
    cursor: str | None = None
    while len(traces) < limit:
        portion = min(_PORTION, limit - len(traces))
        page = client.search_traces(topic, **selector.arguments(), limit=portion, cursor=cursor)
        traces += page.traces
        cursor = page.next
        if cursor is None:
            break
    if not traces:
        raise MessageNotFound(f"topic {topic} has no such message")
    return traces, cursor


def _newest(client: Client, topic: str, selector: TraceSelector) -> str:
    [trace], _ = _search(client, topic, selector, 1)
    return str(trace.message.id)


def _print(traces: Sequence[MessageTrace]) -> None:
    for number, trace in enumerate(traces):
        timeline = TimelinePrinter(trace.raw, _style())
        sys.stdout.write("\n" * bool(number) + "".join(f"{line}\n" for line in timeline.whole()))
        _warn(timeline)


def _follow(client: Client, message_id: str) -> None:
    """Print the steps so far, then new ones as they come, until interrupted."""
    trace = client.get_trace(message_id).raw
    timeline = TimelinePrinter(trace, _style())
    told: Counter[Step] = Counter()
    if not SESSION.json:
        _write([*timeline.head(), ""])
        _warn(timeline)
    while True:
        fresh = list(_untold(trace["events"], told))
        if SESSION.json:
            for event in fresh:
                print_json(event)
            sys.stdout.flush()
        else:
            _write(timeline.steps(fresh))
        seen = len(trace["events"])
        trace = client.get_trace(message_id, wait_ms=_FOLLOW_WAIT_MS, seen=seen).raw


def _untold(events: list[Json], told: Counter[Step]) -> Iterator[Json]:
    """Yield the events that were not printed yet; they need not be the last ones.

    A printed event may gain details later; it is not printed again.
    """
    left = told.copy()
    for event in events:
        step = (event["time"], event["event"], event["id"], event.get("group", ""))
        if left[step]:
            left[step] -= 1
        else:
            told[step] += 1
            yield event


def _write(lines: Iterator[str] | list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _warn(timeline: TimelinePrinter) -> None:
    for line in timeline.incomplete():
        sys.stderr.write(f"goq: {line}\n")


def _style() -> Style:
    if not sys.stdout.isatty():
        return Style()
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(shutil.get_terminal_size().columns, colour)


def _export(traces: Sequence[MessageTrace], url: str) -> None:
    from goq.client.tracing.otlp import export

    sent = export(traces, url)
    if SESSION.json:
        print_json({"exported": [each._asdict() for each in sent]})
    else:
        print_table(("id", "trace_id", "spans"), sent)
