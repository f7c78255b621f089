"""Answers on stdout: text, or JSON with --json; notices, errors and questions on stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

import typer

from goq.errors import GoqError
from goq_cli.output.table import begin_block, print_table
from goq_cli.output.text import escaped, escaped_json, shown_field
from goq_cli.session import SESSION

EXIT_IN_PART = 1
_STDERR: Final = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ErrorStream(io.TextIOWrapper):
    """Stderr as text. What it cannot take is dropped: a command goes on, and its exit code tells.

    Its reader may have ended (``goq … 2>&1 | head``), and the disk of its file may be full.
    """

    def write(self, text: str) -> int:
        """Write a text, or drop it."""
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Write out what is buffered, or drop it."""
        with suppress(OSError):
            super().flush()


def open_error_stream(before: TextIO | None) -> ErrorStream:
    """Return stderr with the encoding that it had ``before``, if it was open."""
    encoding = "utf-8" if before is None else before.encoding
    stream = open(_STDERR, "wb", closefd=False)  # noqa: SIM115 - for the life of the process
    return ErrorStream(stream, encoding, "backslashreplace", line_buffering=True)


def print_json(answer: object) -> None:
    """Print one JSON document on one line."""
    _write_json(answer, sys.stdout)


def _write_json(document: object, stream: TextIO) -> None:
    import msgspec

    text = msgspec.json.encode(document).decode()
    stream.write((escaped_json(text) if stream.isatty() else text) + "\n")


def print_answer(answer: Any, text: str) -> None:
    """Print ``answer`` with --json, else ``text``."""
    if SESSION.json:
        print_json(answer)
    else:
        sys.stdout.write(text + "\n")


def print_text(*lines: str) -> None:
    """Print lines for people."""
    begin_block(is_table=False)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def format_time(time: datetime | None) -> str | None:
    """Return a time as the API writes it; None for None."""
    from goq.units import format_time_us

    return None if time is None else format_time_us((time - _EPOCH) // timedelta(microseconds=1))


def tell_done(answer: object, text: str) -> None:
    """Print what was done: as JSON with --json, else as a notice."""
    if SESSION.json:
        print_json(answer)
    else:
        notice(text)


def notice(text: str) -> None:
    """Print a notice on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(text + "\n")


def warn(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"goq: {escaped(text)}\n")


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` options as a mapping.

    Raises ``UsageError`` for one without ``=``, and for one that is there twice.
    """
    from goq.errors import UsageError

    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r} is not key=value")
        if key in settings:
            raise UsageError(f"{key} is given twice, as {settings[key]!r} and as {value!r}")
        settings[key] = value
    return settings


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; raise ``UsageError`` without a terminal."""
    from goq.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say --yes to do it without being asked")
    import typer

    typer.confirm(question, abort=True, err=True)


def drop_output() -> None:
    """Drop what is still to be printed: it could not be."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: GoqError) -> None:
    """Print an error on stderr."""
    if SESSION.json:
        problem = {"code": error.code, "detail": error.detail, "exit_code": error.exit_code}
        if error.field is not None:
            problem["field"] = error.field
        _write_json(problem, sys.stderr)
        return
    where = f" ({error.field})" if error.field else ""
    for text in (f"{error.detail}{where}", *getattr(error, "__notes__", ())):
        lines = "\n".join(map(escaped, text.splitlines()))
        sys.stderr.write(f"goq: {lines}\n")


def print_messages(messages: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print messages as a table, or as JSON with --json."""
    if SESSION.json:
        print_json({"messages": messages})
    else:
        print_table(
            columns, [[shown_field(message, name) for name in columns] for message in messages]
        )


def for_each(
    ids: Iterable[str], change: Callable[[str], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Change messages one by one, and print the errors; return the changed ones.

    A single message raises its error. If some of several fail, the exit code is 1.
    """
    names, done, failed = list(ids), list[Mapping[str, Any]](), 0
    for name in names:
        try:
            done.append(change(name))
        except GoqError as error:
            if len(names) == 1:
                raise
            complain(error)
            failed += 1
    if failed:
        print_messages(done, ("id", "state", "priority", "deliver_at"))
        raise typer.Exit(EXIT_IN_PART)
    return done
