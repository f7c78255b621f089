"""Manual pages of ``goq``, from the help of its commands: the source of docs/cli.md, as roff.

``man goq`` has what holds for all commands, ``man goq-COMMAND`` a command with its subcommands.
They are written and checked by ``tools/cli_docs.py``, and a wheel installs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typer.main import get_command

from goq import __version__

Row = tuple[str, str]


def man_pages(everywhere: Sequence[Row]) -> dict[str, str]:
    """Return all pages by file name. ``everywhere`` are rows of Markdown for ``goq.1``."""
    from goq_cli.main import COMMANDS, build_app

    root: Any = get_command(build_app(list(COMMANDS)))
    pages = {"goq.1": _overview(COMMANDS, everywhere)}
    for name, summary in COMMANDS.items():
        pages[f"goq-{name}.1"] = _page(name, summary, root.commands[name])
    return pages


def _overview(commands: Mapping[str, str], everywhere: Sequence[Row]) -> str:
    lines = [
        *_head("goq", "a message queue on a durable log"),
        ".SH SYNOPSIS",
        r"\fBgoq\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH COMMANDS",
    ]
    for name, summary in commands.items():
        lines += _item(rf"\fBgoq\-{_escaped(name)}\fR(1)", summary)
    lines.append(".SH EVERYWHERE")
    for left, right in everywhere:
        lines += _item(_from_markdown(left), right, is_markdown=True)
    return _finished(lines)


def _page(name: str, summary: str, command: Any) -> str:
    lines = [*_head(f"goq-{name}", summary)]
    if hasattr(command, "commands"):
        if command.invoke_without_command:
            lines += [
                f".SH {_escaped(f'goq {name}'.upper())}",
                *_body(command, f"goq {name}", ".SS"),
            ]
        for word, inner in command.commands.items():
            lines.append(f".SH {_escaped(f'goq {name} {word}'.upper())}")
            lines += _body(inner, f"goq {name} {word}", ".SS")
    else:
        lines.append(".SH SYNOPSIS")
        lines += _body(command, f"goq {name}", ".SH")
    lines += [".SH SEE ALSO", r"\fBgoq\fR(1): options of all commands, exit codes, values"]
    return _finished(lines)


def _body(command: Any, path: str, heading: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield rf"\fB{_escaped(path)}\fR {_escaped(pieces)}"
    if heading == ".SH":
        yield ".SH DESCRIPTION"
    else:
        yield ".PP"
    yield from _paragraphs(command.help or "")
    records = [
        record
        for param in command.params
        if param.name != "help" and (record := param.get_help_record(context)) is not None
    ]
    for kind, shown in (
        ("ARGUMENTS", [r for r in records if not r[0].startswith("-") and r[1]]),
        ("OPTIONS", [r for r in records if r[0].startswith("-")]),
    ):
        if shown:
            yield f"{heading} {kind}" if heading == ".SH" else f".SS {kind.capitalize()}"
        for written, text in shown:
            yield from _item(rf"\fB{_escaped(written)}\fR", text)


def _head(name: str, summary: str) -> list[str]:
    return [
        '.\\" Written by tools/cli_docs.py from the help of the command.',
        f'.TH {_escaped(name.upper())} 1 "" "goq {__version__}" "goq"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(summary)}",
    ]


def _item(term: str, text: str, *, is_markdown: bool = False) -> list[str]:
    body = _from_markdown(text) if is_markdown else _escaped(" ".join(text.split()))
    return [".TP", term, body or r"\&"]


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        yield _escaped(" ".join(paragraph.split()))


def _from_markdown(text: str) -> str:
    """Return a cell of a table as roff: code in bold, links as their words."""
    text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    parts = text.split("`")
    return _protected(
        "".join(
            rf"\fB{_letters(part)}\fR" if number % 2 else _letters(part)
            for number, part in enumerate(parts)
        )
    )


def _escaped(text: str) -> str:
    return _protected(_letters(text))


def _letters(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")


def _protected(line: str) -> str:
    """Return a line that is no request of roff, whatever it begins with."""
    return rf"\&{line}" if line[:1] in (".", "'") else line


def _finished(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
