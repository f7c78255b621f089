"""``goq produce``."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from goq import limits
from goq.errors import GoqError, InvalidInput, NotFound, TooLarge, UsageError
from goq.model import UNTERMINATED_HEADER, Header, Message, check_text
from goq_cli.input.form import Form
from goq_cli.input.rejects import FAIL, Rejects
from goq_cli.input.splitter import Splitter
from goq_cli.interrupts import Terminated
from goq_cli.output.output import EXIT_IN_PART, drop_output, parse_settings
from goq_cli.output.progress import Advance, show_progress
from goq_cli.session import SESSION, ClientId, RetryFor

if TYPE_CHECKING:
    from goq.client import Producer, PublishedBatch

STDIN = "-"


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    files: Annotated[
        list[str], typer.Argument(metavar="[FILE]...", help="Default or '-': stdin.")
    ] = [],
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help="A JSON object a line: value, key, headers, priority, delay, …"
        ),
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="A file is one message.")] = False,
    delimiter: Annotated[
        str, typer.Option(metavar="S", help=r"Ends a message; \n, \t, \0, \xHH are understood.")
    ] = r"\n",
    null: Annotated[
        bool, typer.Option("--null", "-0", help="The same as --delimiter '\\0'.")
    ] = False,
    key: Annotated[str | None, typer.Option(metavar="K", help="The key of every message.")] = None,
    key_sep: Annotated[str | None, typer.Option(metavar="S", help="The key is before S.")] = None,
    header: Annotated[
        list[str], typer.Option(metavar="K=V", help="A header of every message; repeatable.")
    ] = [],
    priority: Annotated[
        str | None, typer.Option(metavar="P", help="The lane of every message.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="D", help="Deliver no message before this delay.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver no message before this time.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="D", help="How long a ready message may wait."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="The owner of the messages.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Default: by key.")
    ] = None,
    acks: Annotated[
        str | None,
        typer.Option(
            metavar="quorum|leader",
            help="In a cluster: wait for enough nodes, or for one. Default quorum.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Messages a request at most.")] = 10_000,
    linger: Annotated[
        str, typer.Option(metavar="D", help="Wait of a batch for more messages.")
    ] = "5ms",
    compress: Annotated[str | None, typer.Option(metavar="zstd", help="Compress batches.")] = None,
    client_id: ClientId = None,
    retry_for: RetryFor = None,
    on_error: Annotated[
        str,
        typer.Option(
            "--on-error",
            metavar="fail|skip|FILE",
            help="What to do with input that is too long or malformed; FILE gets it as it came.",
        ),
    ] = FAIL,
    print_ids: Annotated[
        bool, typer.Option("--print-ids", help="Print the id of each stored message.")
    ] = False,
) -> None:
    """Publish messages: a line each by default.

    Ends when everything is stored. Messages before an error in the input are stored too. A last
    line without a newline gets the header goq-unterminated: consume --raw prints it as it came.
    """
    if jsonl + whole > 1 or ((jsonl or whole) and (key_sep or null)):
        raise UsageError("--jsonl, --whole and --key-sep or --null exclude each other")
    if compress not in (None, "zstd"):
        raise UsageError(f"--compress is zstd, not {compress!r}")
    if acks not in (None, "quorum", "leader"):
        raise UsageError(f"--acks is quorum or leader, not {acks!r}")
    if key is not None and key_sep is not None:
        raise UsageError("give --key or --key-sep, not both")
    if delay is not None and deliver_at is not None:
        raise UsageError("give --delay or --deliver-at, not both")
    from goq.client.delivery_options import DeliveryOptions

    headers = parse_settings(header)
    if len(headers) < len(header):
        raise UsageError("--header: a name is given twice; --jsonl takes a list of headers")
    form = Form(
        delimiter=b"\0" if null else unescape(delimiter, "--delimiter"),
        jsonl=jsonl,
        whole=whole,
        key=None if key is None else os.fsencode(key),
        key_separator=None if key_sep is None else unescape(key_sep, "--key-sep"),
        headers=tuple(
            (check_text(name, "--header"), os.fsencode(text)) for name, text in headers.items()
        ),
        delivery=DeliveryOptions(priority, delay, deliver_at, ttl, tenant),
    )
    report = ProduceReport(print_ids)
    interrupted = threading.Event()
    rejects = Rejects(on_error)
    with (
        report.tells_count(),
        rejects,
        SESSION.lasting_client(client_id, retry_for, interrupted.is_set) as client,
        report.progress(files),
        client.producer(
            topic,
            batch=batch,
            linger=linger,
            compress=compress is not None,
            partition=partition,
            acks=acks,
            on_published=report.published,
        ) as producer,
    ):
        try:
            for name in files or [STDIN]:
                with opened(name) as fd, report.reading(fd):
                    feed(producer, fd, name, form, rejects)
        except (KeyboardInterrupt, Terminated):
            interrupted.set()
            raise
    report.finish()
    rejects.finish()
    if rejects.count:
        raise typer.Exit(EXIT_IN_PART)


def feed(producer: Producer, fd: int, name: str, form: Form, rejects: Rejects) -> None:
    """Publish the messages of one input."""
    label = "stdin" if name == STDIN else name
    if form.whole:
        message = Message(_whole(fd, label), form.key, form.headers)
        producer.send_many([producer.apply(message, form.delivery)])
        return
    splitter = Splitter(b"\n" if form.jsonl else form.delimiter, label, rejects)
    for values in splitter.split(fd):
        first = splitter.count - len(values) + 1
        if form.is_plain and not splitter.unterminated:
            producer.send_values(values)
            continue
        messages: list[Message] = []
        is_last_refused = False
        try:
            for number, value in enumerate(values, first):
                is_last_refused = False
                try:
                    messages += form.messages(value, f"{label}, line {number}", producer)
                except InvalidInput as error:
                    rejects.refuse(error)
                    rejects.keep(value + splitter.delimiter)
                    is_last_refused = True
            if splitter.unterminated and messages and not form.jsonl and not is_last_refused:
                mark: Header = (UNTERMINATED_HEADER, b"1")
                headers = (*messages[-1].headers, mark)
                messages[-1] = msgspec.structs.replace(messages[-1], headers=headers)
        finally:
            if messages:
                producer.send_many(messages)


def _whole(fd: int, label: str) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while part := os.read(fd, limits.MIB):
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > limits.VALUE_BYTES_MAX:
            raise TooLarge(f"{label} is over {limits.VALUE_BYTES_MAX} bytes, the limit of a value")
    return b"".join(parts)


@contextmanager
def opened(name: str) -> Iterator[int]:
    """Open an input by name; ``-`` is stdin."""
    if name == STDIN:
        try:
            os.read(sys.stdin.fileno(), 0)
        except OSError as error:
            raise UsageError(f"cannot read stdin: {error.strerror}") from None
        yield sys.stdin.fileno()
        return
    try:
        fd = os.open(name, os.O_RDONLY)
    except OSError as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else UsageError
        raise kind(f"cannot read {name}: {error.strerror}") from None
    try:
        yield fd
    except IsADirectoryError:
        raise UsageError(f"{name} is a folder") from None
    finally:
        os.close(fd)


def unescape(text: str, option: str) -> bytes:
    r"""Return ``text`` with ``\n``, ``\t``, ``\0`` and ``\xHH`` resolved, as bytes."""
    import re

    def resolve(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] == b"x":
            return bytes([int(code[1:], 16)])
        return {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}[code]

    resolved = re.sub(rb"\\(x[0-9A-Fa-f]{2}|[ntr0\\])", resolve, os.fsencode(text))
    if not resolved:
        raise UsageError(f"{option} may not be empty")
    return resolved


def _size_bytes(files: list[str]) -> int | None:
    """Return the size of all inputs, None if one is not a regular file."""
    size_bytes = 0
    for name in files or [STDIN]:
        try:
            found = os.fstat(sys.stdin.fileno()) if name == STDIN else os.stat(name)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        size_bytes += found.st_size
    return size_bytes


class ProduceReport:
    """The report of a run: ids on stdout with --print-ids, progress on a terminal."""

    def __init__(self, print_ids: bool) -> None:
        self._print_ids = print_ids
        self._count = 0
        self._advance: Advance = lambda _count: None
        self._read_bytes = 0
        self._reading_fd: int | None = None

    def published(self, batch: PublishedBatch) -> None:
        """Count stored messages; called by the producer's worker."""
        self._count += len(batch)
        self._advance(len(batch))
        if not self._print_ids:
            return
        if SESSION.json:
            lines = [f'{{"id":"{published.id}"}}\n' for published in batch]
        else:
            lines = [f"{published.id}\n" for published in batch]
        try:
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        except OSError as error:  # also of a closed pipe: the rest of the input is not published
            drop_output()
            raise GoqError(f"the output: {error.strerror}") from None

    @contextmanager
    def progress(self, files: list[str]) -> Iterator[None]:
        """Show progress on a terminal, unless the input is typed there."""
        typing = (not files or STDIN in files) and sys.stdin.isatty()
        shown = sys.stderr.isatty() and not typing and not SESSION.json
        with show_progress(
            shown=shown, total=lambda: _size_bytes(files), position=self._position
        ) as self._advance:
            yield
        if shown:
            sys.stderr.write(f"{self._count:,} messages stored\n")

    @contextmanager
    def reading(self, fd: int) -> Iterator[None]:
        """Count what is read of an input as progress."""
        self._reading_fd = fd
        yield
        self._read_bytes, self._reading_fd = self._position(), None

    def _position(self) -> int:
        """Return how many bytes were read, of regular files."""
        fd = self._reading_fd
        with suppress(OSError):  # a pipe, or closed at this moment
            return self._read_bytes + (0 if fd is None else os.lseek(fd, 0, os.SEEK_CUR))
        return self._read_bytes

    @contextmanager
    def tells_count(self) -> Iterator[None]:
        """Add to an error how many messages were stored before."""
        try:
            yield
        except GoqError as error:
            error.add_note(f"{self._count:,} messages were stored")
            raise

    def finish(self) -> None:
        """Print the result, as JSON with --json."""
        if SESSION.json and not self._print_ids:
            sys.stdout.write(f'{{"published":{self._count}}}\n')
