"""``goq consume``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from goq.errors import UsageError
from goq_cli.interrupts import Interrupts
from goq_cli.output.message_format import DEFAULT_FORMAT, Writer, make_writer
from goq_cli.output.output import EXIT_IN_PART
from goq_cli.session import SESSION, ClientId, RetryFor
from goq_cli.settlement.acker import make_acker

if TYPE_CHECKING:
    from goq.client import Client, DamagedRange, LogMessage, ReceivedMessage
    from goq_cli.settlement.acker import Acker
    from goq_cli.settlement.coproc import Coproc
    from goq_cli.settlement.exec_worker import ExecWorker

_PREFETCH = 2000
_FRAMING = "line"
_RETRY_DELAY = "1s"


@dataclass(frozen=True, slots=True)
class Where:
    """The range of the log to read."""

    from_beginning: bool
    from_offset: int | None
    last: int | None
    from_time: str | None
    to_time: str | None
    partition: int | None
    follow: bool
    background: bool

    def is_set(self) -> bool:
        """Whether any bound was given."""
        return self != Where(False, None, None, None, None, None, False, False)


def command(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Names, or patterns as 'orders.*'.")
    ],
    group: Annotated[
        str | None, typer.Option(metavar="G", help="Consume as this group: lease, print, ack.")
    ] = None,
    maximum: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="End after N messages.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is ready.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="D", help="End after D without a message.")
    ] = None,
    visibility: Annotated[
        str | None, typer.Option(metavar="D", help="Visibility timeout of the leases.")
    ] = None,
    prefetch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Messages in flight at most.")
    ] = _PREFETCH,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Do not ack; the leases expire.")
    ] = False,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="F",
            help="%t topic %p partition %o offset %k key %v value %h headers %h{N} header N"
            " %T time %i id %a attempt %x value in hex %S its bytes %j all as JSON %% percent",
        ),
    ] = DEFAULT_FORMAT,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print values only, unchanged, a line each.")
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="With --raw or --coproc: end records with NUL.")
    ] = False,
    execute: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD", help="Run CMD for each message; exit 0 acks, others nack."
        ),
    ] = None,
    coproc: Annotated[
        str | None,
        typer.Option(
            "--coproc",
            metavar="CMD",
            help="Run CMD once: a record a message on its stdin, an answer a line on its stdout:"
            " ok, fail [delay] [reason], reject [reason].",
        ),
    ] = None,
    framing: Annotated[
        str,
        typer.Option(metavar="line|null|length", help="With --coproc: what ends a record."),
    ] = _FRAMING,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Commands at once, for --exec and --coproc.")
    ] = 1,
    retry_delay: Annotated[
        str, typer.Option(metavar="D", help="Delay before a retry after CMD failed.")
    ] = _RETRY_DELAY,
    client_id: ClientId = None,
    retry_for: RetryFor = None,
    no_wait_topic: Annotated[
        bool, typer.Option("--no-wait-topic", help="Exit 3 if the topic is not there yet.")
    ] = False,
    from_beginning: Annotated[bool, typer.Option("--from-beginning")] = False,
    from_offset: Annotated[
        int | None,
        typer.Option(metavar="N", help="From this offset on; -N: N before each partition's end."),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="The newest N messages.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option(metavar="T", help="Only messages appended at or after T.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="T", help="Only messages appended before T.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as messages come, from now on by default.")
    ] = False,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0)] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Read the log only as fast as live traffic allows.")
    ] = False,
) -> None:
    """Print messages, or run a command for each.

    With --group, messages are leased, printed and acknowledged. Without, the log is read from
    --from-… to its end and nothing is acknowledged. Several topics are merged by time.
    """
    where = Where(
        from_beginning, from_offset, last, from_time, to_time, partition, follow, background
    )
    runs = bool(execute or coproc)
    has_lease_option = no_ack or until_empty or visibility or prefetch != _PREFETCH
    for is_refused, reason in (
        (
            last is not None
            and (from_beginning or from_time or to_time or from_offset is not None),
            "--last goes without --from-… and --to-time",
        ),
        (
            from_beginning and from_offset is not None,
            "give --from-beginning or --from-offset, not both",
        ),
        (
            group is None and (runs or has_lease_option),
            "--exec, --coproc, --no-ack, --until-empty, --visibility and --prefetch need a --group",
        ),
        (_is_blank(execute), "--exec needs a command, and this one is empty"),
        (_is_blank(coproc), "--coproc needs a command, and this one is empty"),
        (execute and coproc, "--exec and --coproc exclude each other"),
        (
            not runs and (jobs != 1 or retry_delay != _RETRY_DELAY),
            "--jobs and --retry-delay need --exec or --coproc",
        ),
        (framing != _FRAMING and not coproc, "--framing needs --coproc"),
        (null and not raw and not coproc, "--null needs --raw or --coproc"),
        (runs and raw, "--raw goes without --exec and --coproc"),
        (
            (execute or raw) and form != DEFAULT_FORMAT,
            "--format goes without --exec and --raw",
        ),
        (
            group is not None and where.is_set(),
            "--from-…, --to-time, --last, --partition, --follow and --background go without"
            " --group",
        ),
    ):
        if is_refused:
            raise UsageError(reason)
    if runs:
        from goq.units import parse_duration_ms

        parse_duration_ms(retry_delay, field="--retry-delay")  # before a command has run
    interrupts = Interrupts()
    lasts = group is not None or follow or retry_for is not None
    with (
        SESSION.lasting_client(client_id, retry_for, lambda: interrupts.is_pending)
        if lasts
        else SESSION.client(client_id)
    ) as client:
        if group is None:
            writer = make_writer(form, raw, b"\0" if null else b"\n")
            messages = _log(client, topics, where, writer, timeout, not no_wait_topic)
            _print(writer, messages, maximum)
            return
        taker: ExecWorker | Coproc | Acker
        if coproc:
            from goq_cli.settlement.coproc import Coproc as Workers

            record = _record_form("null" if null else framing, form)
            taker = Workers(client, coproc, jobs, retry_delay, record, interrupts)
        elif execute:
            from goq_cli.settlement.exec_worker import ExecWorker as Worker

            taker = Worker(client, execute, jobs, retry_delay, interrupts)
            prefetch = min(prefetch, 50 * jobs)
        else:
            writer = make_writer(form, raw, b"\0" if null else b"\n")
            taker = make_acker(client, writer, prefetch, interrupts, ack=not no_ack)
        loop = GroupLoop(
            topics, group, prefetch, visibility, until_empty, timeout, not no_wait_topic
        )
        with interrupts.held_back(), taker:
            loop.run(client, taker, maximum, interrupts, again=until_empty and runs)
        interrupts.check()
    if taker.has_failed:
        raise typer.Exit(EXIT_IN_PART)


def _is_blank(command: str | None) -> bool:
    return command is not None and not command.strip()


@dataclass(frozen=True, slots=True)
class GroupLoop:
    """The consume loop of a group: its topics, and the options of the client's loop."""

    topics: list[str]
    group: str
    prefetch: int
    visibility: str | None
    until_empty: bool
    timeout: str | None
    wait_for_topics: bool

    def run(
        self,
        client: Client,
        taker: ExecWorker | Coproc | Acker,
        maximum: int | None,
        interrupts: Interrupts,
        *,
        again: bool,
    ) -> None:
        """Give messages to the taker until the loop ends.

        With ``again`` the loop begins anew while it found some: messages whose keys were at work
        may be ready then.
        """

        def before_wait() -> None:
            taker.settle()
            interrupts.wait()

        left = maximum
        while left != 0:
            received = client.consume(
                self.topics,
                group=self.group,
                prefetch=self.prefetch,
                max_messages=left,
                visibility=self.visibility,
                until_empty=self.until_empty,
                timeout=self.timeout,
                auto_extend=taker.keeps_leases,
                before_wait=before_wait,
                after_wait=interrupts.work,
                before_end=taker.settle_all,
                wait_for_topics=self.wait_for_topics,
            )
            count = 0
            with closing(received):
                for message in received:
                    taker.take(message)
                    count += 1
                    interrupts.check()
            left = None if left is None else left - count
            if not again or not count or taker.has_failed:
                return


def _record_form(framing: str, form: str) -> Callable[[ReceivedMessage], bytes]:
    """Return how a worker gets messages: the format without its line end, or JSON."""
    from goq_cli.output.message_format import compile_format, json_line
    from goq_cli.settlement.answer import Framing, make_record_form

    if framing not in [*Framing]:
        raise UsageError(f"--framing is {', '.join(Framing)}, not {framing!r}")
    if SESSION.json:
        return make_record_form(Framing(framing), lambda message: json_line(message)[:-1])
    return make_record_form(Framing(framing), compile_format(form.removesuffix(r"\n")))


def _log(
    client: Client,
    topics: list[str],
    where: Where,
    writer: Writer,
    timeout: str | None,
    wait_for_topic: bool,
) -> Iterator[LogMessage]:
    if timeout is not None:
        raise UsageError("--timeout needs a --group")
    from_time = where.from_time
    if where.follow and not where.from_beginning and where.from_offset is where.last is None:
        from_time = from_time or "now"
    return client.read_log(
        topics,
        partition=where.partition,
        from_offset=where.from_offset,
        from_time=from_time,
        to_time=where.to_time,
        follow=where.follow,
        on_damage=_tell_damage,
        before_wait=writer.flush,
        background=where.background,
        wait_for_topic=wait_for_topic,
        last=where.last,
    )


def _tell_damage(damaged: DamagedRange) -> None:
    global _damaged
    _damaged = True
    sys.stderr.write(
        f"goq: {damaged.topic}:{damaged.partition}: offsets {damaged.start_offset} to"
        f" {damaged.end_offset - 1} are damaged and cannot be read; see: goq doctor\n"
    )


_damaged = False


def _print(writer: Writer, messages: Iterator[LogMessage], maximum: int | None) -> None:
    for number, message in enumerate(messages, 1):
        writer.write(message)
        if number == maximum:
            break
    writer.flush()
    if _damaged:
        raise typer.Exit(1)
