"""Write docs/cli.md from the help of every command, so that the two cannot differ.

python tools/cli_docs.py           write docs/cli.md
python tools/cli_docs.py --check   exit with 1 if it is not what would be written
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import typer
from typer.testing import CliRunner

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
INTRODUCTION = """# The command line

Generated from `goq … --help` by `tools/cli_docs.py`.

Data goes to stdout, everything else to stderr. `--json` anywhere gives JSON: one document, or one
object a line for streams, and errors as JSON objects on stderr. Tables and colour appear only on a
terminal; a pipe gets tab-separated fields. Exit codes: 0 done · 1 failed in part · 2 usage · 3 not
found · 4 not allowed · 5 unavailable or timed out · 6 conflict · 7 invalid data · 130 interrupted.

Durations are written `250ms`, `30s`, `5m`, `1h30m`, `7d`; sizes `64KiB`, `10MB`, `1GiB`; times
as RFC 3339 with a zone, a date, `now`, or relative to now as `-15m`.
"""


def render() -> str:
    """Return the page."""
    from goq_cli.main import COMMANDS, build_app

    app = build_app(list(COMMANDS))
    sections = [INTRODUCTION, _section(app, [])]
    for name in COMMANDS:
        sections.append(_section(app, [name]))
        group = next((g for g in app.registered_groups if g.name == name), None)
        if group is not None and group.typer_instance is not None:
            for command in group.typer_instance.registered_commands:
                word = command.name or command.callback.__name__  # type: ignore[union-attr]
                sections.append(_section(app, [name, word]))
    return "\n".join(sections)


def _section(app: typer.Typer, words: list[str]) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="goq")
    if result.exit_code:
        raise SystemExit(f"goq {' '.join(words)} --help failed: {result.output}")
    lines = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
    heading = f"{'###' if len(words) > 1 else '##'} `{' '.join(['goq', *words])}`"
    return f"{heading}\n\n```text\n{lines}\n```\n"


def main() -> int:
    """Run the command line."""
    os.environ["COLUMNS"] = "80"  # help is wrapped to the terminal it is printed on
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    page = render()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text("utf-8") != page:
            print(f"{PAGE} is out of date: run tools/cli_docs.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
