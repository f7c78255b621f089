"""Audit: every published message is accounted for, in each group.

Each message before a group's cursor must have an event with its outcome, and each lease that is
over must have an end. Messages behind the cursor are waiting. Any other message was lost: there
must be none. Rows must not contradict each other, and the files must be those that were exported.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from goq.pipeline.reports.audit.group_progress import LogProgress, TableProgress
from goq.pipeline.reports.audit.node_comparison import NodeComparison
from goq.pipeline.reports.audit.slice_audit import LACKS_LEASE, LACKS_RETRY, LOST, NO_ROW
from goq.pipeline.reports.audit.slices import SHOWN, TableSlices
from goq.pipeline.reports.report import Bars, Report, Section

_FILES = ("file", "fault")
_Gap = tuple[str, int, int, int]


class _Offsets(NamedTuple):
    """So many offsets, and the first of them."""

    total: int
    first: Sequence[int]


_NONE = _Offsets(0, ())


class MessageFate(NamedTuple):
    """The fate of a message in a group, None for a topic without groups."""

    message_id: str
    group: str | None
    fate: str


class Fault(NamedTuple):
    """A contradiction; ``offset`` is None for one of a whole partition."""

    fault: str
    topic: str
    group: str | None
    partition: int
    offset: int | None


class Audit:
    """The findings of an audit. Counts are of all, lists have the first hundred of each kind."""

    def __init__(self, progress: TableProgress) -> None:
        self._progress = progress
        self._names = {number: name for name, number in progress.group_numbers.items()}
        self.fate_counts: Counter[tuple[str, str | None, str]] = Counter()
        self.lost: list[MessageFate] = []
        self.lost_count = self.fault_count = self.missing_count = 0
        self.faults: list[Fault] = []
        self.gaps: list[_Gap] = []

    @classmethod
    def of(cls, tables: TableSlices) -> Audit:
        """Audit the tables."""
        progress = tables.progress
        audit = cls(progress)
        known: dict[int, list[tuple[int, int]]] = defaultdict(list)
        held: dict[tuple[int, int], dict[str, _Offsets]] = defaultdict(dict)
        for row in tables.findings():
            what, number, group, name, count, offsets = row
            if what == "fate":
                audit._add_fate(number, group, name, count, offsets)
            elif what == "fault":
                audit._add_fault(number, group, name, count, offsets)
            elif what == "known":
                known[number].append((offsets[0], offsets[1]))
            elif what == "gap":
                pairs = zip(offsets[::2], offsets[1::2], strict=True)
                audit._add_gaps(progress.logs[number], pairs)
            else:
                before = held[number, group].get(what, _NONE)
                told = _Offsets(before.total + count, [*before.first, *offsets])
                held[number, group][what] = told
        for log in progress.logs.values():
            audit._add_gaps(log, _between(log, sorted(known[log.number])))
        for (number, group), some in held.items():
            audit._compare(number, group, some)
        return audit

    def _compare(self, number: int, group: int, some: Mapping[str, _Offsets]) -> None:
        """Compare how many messages the events leave open with how many the group has."""
        now = self._progress.logs[number].groups[group].newest_row
        if now is None:
            return
        leased, again, fresh = (some.get(what, _NONE) for what in ("held", "retry", "fresh"))
        if leased.total > now.leased:
            self._add_fault(number, group, LACKS_LEASE, *leased)
        if again.total and again.total + fresh.total > now.unfinished - now.leased:
            self._add_fault(number, group, LACKS_RETRY, *again)

    def _add_fate(
        self, number: int, group: int, fate: str, count: int, offsets: Sequence[int]
    ) -> None:
        log, name = self._progress.logs[number], self._names.get(group)
        self.fate_counts[log.topic, name, fate] += count
        if fate in LOST:
            self.lost_count += count
            place = f"{log.topic}:{log.partition}"
            self.lost += [MessageFate(f"{place}:{offset}", name, fate) for offset in offsets]

    def _add_fault(
        self, number: int, group: int, fault: str, count: int, offsets: Sequence[int]
    ) -> None:
        log, name = self._progress.logs[number], self._names.get(group)
        if fault == NO_ROW:
            found = Fault(fault, log.topic, name, log.partition, None)
            self.fault_count += found not in self.faults
            self.faults += [found] if found not in self.faults else []
            return
        self.fault_count += count
        self.faults += [Fault(fault, log.topic, name, log.partition, o) for o in offsets[:SHOWN]]

    def _add_gaps(self, log: LogProgress, pairs: Iterator[tuple[int, int]]) -> None:
        for start, end in pairs:
            begin = max(start, log.gone_to)
            if begin < end:
                self.missing_count += end - begin
                self.gaps.append((log.topic, log.partition, begin, end))


def _between(log: LogProgress, known: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the offsets between slices, and between them and the ends that the groups know."""
    at = log.first_offset
    for first, last in known:
        yield (first if at is None else at), first
        at = last + 1
    if log.end_offset is not None and at is not None:
        yield at, log.end_offset


def audit(
    tables: TableSlices,
    changed_files: Sequence[tuple[str, str]] = (),
    comparison: NodeComparison | None = None,
) -> Report:
    """Report the outcome of every message, by group; failed if one is not accounted for.

    Failed, too, if rows contradict each other, there are ``changed_files``, or a ``comparison``
    with the node found other values.
    """
    found = Audit.of(tables)
    changed_files = [*changed_files, *(comparison.faults if comparison else ())]
    by = ("topic", "group", "fate")
    counts = [(*named, count) for named, count in found.fate_counts.items()]
    sections = [
        Section(
            "What became of them",
            (*by, "messages"),
            sorted(counts, key=lambda row: (row[0], row[1] or "", row[2])),
            Bars(by, "messages", "messages"),
            "There are no messages.",
        ),
        Section(
            "Messages that nothing is known of",
            MessageFate._fields,
            sorted(found.lost)[:SHOWN],
            nothing="None.",
        ),
        Section(
            "Offsets that are in no file",
            ("topic", "partition", "start_offset", "end_offset"),
            sorted(found.gaps)[:SHOWN],
            nothing="None.",
        ),
        Section(
            "Rows that contradict each other",
            Fault._fields,
            sorted(found.faults, key=str)[:SHOWN],
            nothing="None.",
        ),
        Section(
            "Files that are not as exported", _FILES, list(changed_files[:SHOWN]), nothing="None."
        ),
    ]
    if comparison is not None:
        sections.append(
            Section(
                "Messages compared with the node",
                ("compared", "not_on_the_node"),
                [(comparison.compared, comparison.gone)],
            )
        )
    is_sound = not (found.lost_count or found.missing_count or found.fault_count or changed_files)
    return Report(
        "audit",
        "Is every published message accounted for?",
        sections,
        failed=not is_sound,
        verdict=_verdict(found, len(changed_files)),
        scope=tables.scope(),
    )


def _verdict(found: Audit, files: int) -> str:
    if not (found.lost_count or found.missing_count or found.fault_count or files):
        return "Yes: every message is accounted for."
    said = [
        f"of {found.lost_count:,} messages nothing is known,"
        f" and {found.missing_count:,} offsets are in no file"
    ]
    if found.fault_count:
        said.append(f"{found.fault_count:,} rows contradict others")
    if files:
        said.append(f"{files:,} files are not as exported")
    return f"No: {'; '.join(said)}."
