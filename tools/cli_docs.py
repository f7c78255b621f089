"""Write docs/cli.md and docs/man from the help of every command, so that they cannot differ.

python tools/cli_docs.py           write both
python tools/cli_docs.py --check   exit with 1 if a page is not what would be written
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.man_pages import man_pages

MAN = Path(__file__).resolve().parent.parent / "docs" / "man"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
INTRODUCTION = """# The command line

Written from `goq … --help` by `tools/cli_docs.py`. In a usage line `{…}` is required.
The same as [manual pages](#manual-pages): `man goq`, `man goq-produce`.

| everywhere | |
|---|---|
| `-h`, `--help` | also of a command |
| `--server URL` | repeatable; `host:port` will do; else `GOQ_SERVER`, the current context, `http://127.0.0.1:8080` |
| `--context NAME` | the servers of this context, for one call |
| `--token-file FILE` | the [token](security.md) in a file; else `GOQ_TOKEN`, `GOQ_TOKEN_FILE`, the current context |
| `--ca-file FILE` | PEM: the authorities of `https` servers; else `GOQ_CA_FILE`, the public ones |
| `--cert-file FILE`, `--key-file FILE` | PEM: a [client certificate](security.md#client-certificates) and its key; else `GOQ_CERT_FILE`, `GOQ_KEY_FILE` |
| `--token TOKEN` | the token itself; other users of the machine can see it in the list of processes |
| `--json` | one document, or one object a line for streams; errors as JSON objects on stderr |
| stdout, stderr | data, in UTF-8; everything else. Tables and colour appear only on a terminal, where control characters are escaped, also in JSON, but not with `--raw`; a pipe gets tab-separated fields |
| exit codes | 0 done · 1 failed in part · 2 usage: a wrong command or option · 3 not found · 4 not allowed · 5 unavailable or timed out · 6 conflict · 7 invalid data: what was read, or a name, a time or a setting that cannot be one · 130 interrupted · 143 terminated |
| durations | `250ms`, `30s`, `5m`, `1h30m`, `7d`; a number alone is seconds, except in settings and `--keep`, which want a unit |
| sizes | `64KiB`, `10MB`, `1GiB`; a number alone is bytes, except in settings, which want a unit |
| times | RFC 3339 with a zone, a date, `now`, or relative to now as `-15m` |

## Manual pages

`pip install goq` puts them into `share/man` of its environment. man-db finds those of programs in the `PATH`; elsewhere:
`man -M "$(python -c 'import sys; print(sys.prefix)')/share/man" goq`.
"""  # noqa: E501 - lines of a table
EVERYWHERE = re.findall(r"^\| (\S.*?) \| (\S.*) \|$", INTRODUCTION, re.MULTILINE)
# What the introduction says once: -h, the epilog, and arguments that only the usage names.
_SAID_ONCE = re.compile(
    r"  -h, --help +Show this message and exit\.|  [^-\s]\S*(?: +\[required\])?"
)
_AS_ABOVE = "Options: as above."
_COLUMNS = 80


def render() -> str:
    """Return the page."""
    from goq_cli.main import COMMANDS, build_app, build_overview

    app = build_app(list(COMMANDS))
    root = get_command(app)
    sections = [INTRODUCTION, _section(get_command(build_overview()), [], "")]
    for name in COMMANDS:
        group = next((g for g in app.registered_groups if g.name == name), None)
        if group is None or group.typer_instance is None:
            sections.append(_section(root, [name], ""))
            continue
        if group.typer_instance.registered_callback is not None:  # it is a command by itself, too
            sections.append(_section(root, [name], ""))
        else:
            sections.append(f"## `goq {name}`\n\n{COMMANDS[name].capitalize()}.\n")
        last = ""
        for command in group.typer_instance.registered_commands:
            word = command.name or command.callback.__name__  # type: ignore[union-attr]
            sections.append(_section(root, [name, word], last))
            if _AS_ABOVE not in sections[-1]:
                last = sections[-1]
    return "\n".join(sections)


def _section(root: Any, words: list[str], before: str) -> str:
    """Return the help of a command, without the options that the section ``before`` has, too."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = [*words, "--help"]
        root.main(arguments, prog_name="goq", standalone_mode=False, terminal_width=_COLUMNS)
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    parts = []
    for part in text.split("\n\n  Everywhere: ")[0].split("\n\n"):
        lines = part.splitlines()
        if lines[0] in ("Arguments:", "Options:", "Commands:"):
            lines[1:] = [line for line in lines[1:] if not _SAID_ONCE.fullmatch(line)]
            if len(lines) == 1:
                continue
        parts.append("\n".join(lines))
    if parts[-1].startswith("Options:") and f"\n\n{parts[-1]}\n```" in before:
        known = [part for part in parts if part.startswith(("Arguments:", "Options:"))]
        parts = [part for part in parts if part not in known or part not in before]
        parts.append(_AS_ABOVE)
    heading = f"{'###' if len(words) > 1 else '##'} `{' '.join(['goq', *words])}`"
    body = "\n\n".join(parts)
    return f"{heading}\n\n```text\n{body}\n```\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    pages = {PAGE: render()}
    pages |= {MAN / name: text for name, text in man_pages(EVERYWHERE).items()}
    others = set(MAN.glob("*")) - pages.keys()
    stale = [path for path, text in pages.items() if _read(path) != text]
    if parser.parse_args().check:
        for path in sorted({*stale, *others}):
            print(f"{path} is out of date: run tools/cli_docs.py", file=sys.stderr)
        return 1 if stale or others else 0
    MAN.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(pages[path], "utf-8")
    for path in others:
        path.unlink()
    return 0


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
