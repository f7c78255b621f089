"""How far a long run is, for who watches it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(*, shown: bool) -> Iterator[Callable[[int], None]]:
    """Count messages on stderr while the block runs, if ``shown``; yield what to tell them to."""
    if not shown:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} messages"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.advance(task, count)
