"""Progress of a long command on stderr: count, share, rate and remaining time, on a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from goq_cli.session import SESSION

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

Unit = Literal["messages", "bytes"]
Advance = Callable[[int], None]
_WINDOW_S: Final = 5.0


@contextmanager
def show_progress(
    *,
    shown: bool = True,
    unit: Unit = "messages",
    total: Callable[[], float | None] = lambda: None,
    position: Callable[[], float] | None = None,
) -> Iterator[Advance]:
    """Show progress during the block if ``shown`` and stderr is a terminal; yield the counter.

    ``total`` is called once, only then; None for an unknown total, without share and remaining
    time. The share is the counted part of it, or that of ``position`` after each count.
    """
    if not shown or not sys.stderr.isatty() or SESSION.json:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    known = total()
    columns = [
        SpinnerColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
    ]
    if known:
        share = [BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn(compact=True)]
        columns += [*share, TextColumn("left")]
    else:
        columns.append(TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=known or None, count=_written(0, unit), rate="")
        yield ProgressCounter(bar, task, unit, known, position).add


class ProgressCounter:
    """Counts, and moves a bar; the rate is that of the last seconds."""

    def __init__(
        self,
        bar: Bar,
        task: TaskID,
        unit: Unit,
        total: float | None,
        position: Callable[[], float] | None,
    ) -> None:
        self._bar = bar
        self._task = task
        self._unit: Unit = unit
        self._total = total
        self._position = position
        self._count = 0
        self._samples = deque([(time.monotonic(), 0)])

    def add(self, count: int) -> None:
        """Count what was done."""
        self._count += count
        now_s = time.monotonic()
        if now_s - self._samples[-1][0] >= _WINDOW_S / 50:
            self._samples.append((now_s, self._count))
        while len(self._samples) > 1 and now_s - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        since_s, before = self._samples[0]
        rate = (self._count - before) / max(now_s - since_s, 1e-3)
        reached = self._count if self._position is None else self._position()
        self._bar.update(
            self._task,
            completed=reached if self._total is None else min(reached, self._total),
            count=_written(self._count, self._unit),
            rate=f"{_written(round(rate), self._unit, is_short=True)}/s",
        )


def _written(count: int, unit: Unit, *, is_short: bool = False) -> str:
    if unit == "bytes":
        from goq.units import round_size_bytes

        return round_size_bytes(count)
    return f"{count:,}" if is_short else f"{count:,} messages"
