"""The tables of an audit, cut into slices of offsets that are audited one by one.

What is found comes back as counts and the first offsets of each kind, so the driver needs little
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from goq.pipeline.reports.audit.group_progress import LogProgress, TableProgress
from goq.pipeline.reports.audit.slice_audit import Found, SliceAudit
from goq.pipeline.reports.audit.slice_rows import NO_GROUP, Ints, SliceRows
from goq.pipeline.reports.report import Scope

SHOWN = 100
"""So many offsets of each kind are named; all are counted."""


class SliceFinding(NamedTuple):
    """A finding in a slice of a log, and its group.

    ``known`` are the first and the last offset of the slice that are in files, ``gap`` pairs of
    offsets between which none is.
    """

    what: str
    log: int
    group: int
    name: str
    times: int
    offsets: Sequence[int]


class TableSlices(Protocol):
    """The tables of an audit."""

    @property
    def progress(self) -> TableProgress:
        """Where everything stands."""
        ...

    def findings(self, shown: int | None = SHOWN) -> Iterable[SliceFinding]:
        """Yield what is found; each has at most ``shown`` offsets, all if None."""
        ...

    def scope(self) -> Scope:
        """Return the messages that are audited."""
        ...


def findings_of(log: LogProgress, rows: SliceRows, shown: int | None) -> Iterator[SliceFinding]:
    """Audit a slice."""
    audit = SliceAudit(log, rows)
    known = audit.known()
    gaps = np.flatnonzero(np.diff(known) > 1)
    pairs = np.stack((known[gaps] + 1, known[gaps + 1]), axis=1).ravel()
    gap = _finding(log, Found("gap", NO_GROUP, "", pairs), None if shown is None else 2 * shown)
    yield gap._replace(times=int((pairs[1::2] - pairs[::2]).sum()))
    for each in audit.findings():
        yield _finding(log, each, shown)
    if len(known):
        yield _finding(log, Found("known", NO_GROUP, "", known[[0, -1]]), None)


def _finding(log: LogProgress, found: Found, shown: int | None) -> SliceFinding:
    what, group, name, offsets = found
    named: Ints = offsets if shown is None else offsets[:shown]
    return SliceFinding(what, log.number, group, name, len(offsets), named.tolist())
