"""Entry point of ``goq``: global options, the command's module, errors and exit codes.

Start-up time counts in pipelines: only the module of the named command is imported, and commands
import the rest of what they need when they run.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer

from goq.errors import GoqError
from goq_cli.interrupts import Terminated, remind_of_signals
from goq_cli.output.output import complain, drop_output, open_error_stream
from goq_cli.session import take_global_options
from goq_cli.suggestion import suggest

COMMANDS = {
    "serve": "run a node",
    "produce": "publish lines, files or JSON from stdin or files",
    "consume": "print messages, or run a command for each",
    "worker": "run the workers of a Python program",
    "replay": "print the past again, copy it into a topic, or rewind a group",
    "trace": "tell the life of a message, step by step",
    "peek": "look at messages without touching them",
    "grep": "find the messages that contain a text",
    "schedule": "add, list, show, pause, resume, remove periodic messages",
    "scheduled": "list scheduled messages",
    "message": "show, cancel, reschedule or re-prioritise single messages",
    "topic": "create, list, show, alter, delete topics",
    "group": "list, show, set, reset, delete consumer groups",
    "dlq": "list, show, redrive, purge dead letters",
    "cluster": "show a cluster, let nodes join and leave, move partitions, elect leaders",
    "export": "write topics as Parquet for Spark",
    "report": "analyse exported topics with Spark",
    "republish": "publish messages chosen by a SQL query again",
    "backup": "back up a node, list, verify and prune backups",
    "restore": "make a data folder of a backup",
    "top": "show what nodes, topics and groups do now",
    "doctor": "check a node, or verify a data folder",
    "bench": "measure a node",
    "token": "create, list, rotate, revoke tokens; show whose token this is",
    "audit": "show who managed, operated and administered what, and what was refused",
    "context": "remember servers by name",
    "completion": "complete commands, topics and groups in a shell",
    "version": "print the version",
}
_YOUNG_OBJECTS = 20_000
"""New objects that let Python look for cycles: at 700, its default, imports cost 10 ms more."""

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a stream: those of files name them."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_EPILOG = (
    "Everywhere: --server URL (repeatable), --context NAME, --token-file FILE, --ca-file FILE,"
    " --cert-file FILE, --key-file FILE, --json. Without --server: GOQ_SERVER, the current context, http://127.0.0.1:8080."
)
_HELP = "A message queue on a durable log."


def build_app(names: list[str]) -> typer.Typer:
    """Return the application with the commands in ``names``."""
    app = _root()
    for name in names:
        module = importlib.import_module(f"goq_cli.commands.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=COMMANDS[name], epilog=_EPILOG)
        else:
            kind = getattr(module, "COMMAND", None)
            told = {"help": module.command.__doc__, "epilog": _EPILOG}
            app.command(name, cls=kind, **told)(module.command)
    return app


def build_overview() -> typer.Typer:
    """Return the application for ``goq --help``: all commands by name, and none of their code."""

    def listed() -> None:
        raise AssertionError("a command that is named is loaded with its code")

    app = _root()
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(listed)
    return app


def _root() -> typer.Typer:
    app = typer.Typer(
        help=_HELP,
        epilog=_EPILOG,
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback(help=_HELP, epilog=_EPILOG)
    def root() -> None:
        """Hold the global help."""

    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run ``goq`` and exit."""
    gc.set_threshold(_YOUNG_OBJECTS)
    _open_streams()
    _choose_encoding(sys.stdout)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if os.environ.get("_GOQ_COMPLETE"):
            from goq_cli.completion import print_candidates

            sys.stdout.write(print_candidates(words))
            sys.exit(0)
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe
        code = 0
        drop_output()
    except OSError as error:
        if error.filename is None and error.errno not in _OUTPUT_ERRORS:
            raise
        code = GoqError.exit_code
        complain(GoqError(f"{error.filename or 'the output'}: {error.strerror}"))
        drop_output()
    sys.exit(code)


def _open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr, or the next file would take its place.

    Reading and writing fail there. Errors, which cannot be seen, are dropped.
    """
    for fd, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = open_error_stream(sys.stderr)


def _choose_encoding(stdout: TextIO) -> None:
    """Write UTF-8 into pipes and files, whatever the locale.

    A terminal gets its own encoding. What that lacks is shown as an escape.
    """
    if isinstance(stdout, io.TextIOWrapper):
        encoding = None if stdout.isatty() else "utf-8"
        stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def _run(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    remind_of_signals()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        rest = take_global_options(arguments) or ["--help"]
        if rest[0] in ("--version", "-V"):
            rest[0] = "version"
        named = next((word for word in rest if not word.startswith("-")), "")
        app = build_app([named]) if named in COMMANDS else build_overview()
        code = app(rest, prog_name="goq", standalone_mode=False)
    except GoqError as error:
        if (code := _interrupted_by(error)) is not None:
            return code
        suggest(error, arguments)
        complain(error)
        return error.exit_code
    except Terminated:
        return EXIT_TERMINATED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # the option parser turns a closed pipe into this
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        raise
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:
        if (code := _interrupted_by(error)) is not None:
            return code
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _complain_usage(format_message(), getattr(error, "ctx", None))
    return code if isinstance(code, int) else 0


def _interrupted_by(error: BaseException) -> int | None:
    """Return the exit code of the interrupt that ``error`` arose from, if it arose from one.

    An interrupt comes between any two instructions: code that cleans up may fail on the half of a
    change that it finds.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Terminated):
            return EXIT_TERMINATED
        if isinstance(cause, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        cause = cause.__context__
    return None


def _complain_usage(message: str, context: Any) -> int:
    """Print the option parser's error; return the exit code of wrong usage."""
    from goq.errors import UsageError

    if message.startswith("Usage: "):  # of a command that needs another word
        sys.stderr.write(f"{message}\n")
        return UsageError.exit_code
    hint = f"; see: {context.command_path} --help" if context is not None else ""
    complain(UsageError(message.rstrip(".") + hint))
    return UsageError.exit_code


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated
