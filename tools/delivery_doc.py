"""Write the states of a message into docs/delivery.md, from the table of transitions.

python tools/delivery_doc.py           write them between the markers of the page
python tools/delivery_doc.py --check   exit with 1 if they are not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from goq.delivery.events.transitions import INTERVENTIONS, LIFE, MessageState, Transition

PAGE = Path(__file__).resolve().parent.parent / "docs" / "delivery.md"
BEGIN = "<!-- begin: written by tools/delivery_doc.py -->\n"
END = "<!-- end -->\n"
_OUTSIDE = "[*]"


def render() -> str:
    """Return the diagram and the tables."""
    return "\n".join(
        [
            "```mermaid\nstateDiagram-v2",
            *_edges(LIFE),
            f"    {MessageState.DONE} --> {_OUTSIDE}",
            f"    {MessageState.CANCELLED} --> {_OUTSIDE}",
            "```\n",
            *_table("How a message lives", LIFE),
            "",
            *_table("What administration and faults do", INTERVENTIONS),
            "",
        ]
    )


def _edges(rows: Iterable[Transition]) -> Iterator[str]:
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        label = row.event.__name__ if row.event is not None else row.why
        for source in row.sources or (_OUTSIDE,):
            labels.setdefault((source, row.target or _OUTSIDE), []).append(label)
    for (source, target), names in labels.items():
        yield f"    {source} --> {target}: {', '.join(dict.fromkeys(names))}"


def _table(title: str, rows: Iterable[Transition]) -> Iterator[str]:
    """Yield a table; rows of one reason that differ in one column only are one row."""
    yield f"| {title} | from | to | event |"
    yield "|---|---|---|---|"
    merged: dict[tuple[object, ...], list[Transition]] = {}
    for row in rows:
        unchanged = row.sources == (row.target,)
        group = (row.why, row.event) if unchanged else (row.why, row.sources, row.target)
        merged.setdefault(group, []).append(row)
    for same in merged.values():
        states = {state for row in same for state in row.sources}
        every = len(states) == len(MessageState)
        sources = "any" if every else ", ".join(s for s in MessageState if s in states) or "—"
        target = same[0].target or "gone" if len({row.target for row in same}) == 1 else "the same"
        events = ", ".join(f"`{row.event.__name__}`" for row in same if row.event is not None)
        names = ", ".join(dict.fromkeys(events.split(", "))) or "—"
        yield f"| {same[0].why} | {sources} | {target} | {names} |"


def page() -> str:
    """Return the page as it should be."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} lacks the markers {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{render()}{END}{after}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    wanted = page()
    if parser.parse_args().check:
        if PAGE.read_text("utf-8") != wanted:
            print(f"{PAGE} is out of date: run tools/delivery_doc.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
