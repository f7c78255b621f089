"""How much memory a part of goq holds, whatever else runs in the process of the tests."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def memory_of(package: str) -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes code of a package, as ``goq/delivery``, has got since."""
    only = tracemalloc.Filter(inclusive=True, filename_pattern=f"*/{package}/*")

    def held_bytes() -> int:
        traces = tracemalloc.take_snapshot().filter_traces([only]).traces
        return sum(trace.size for trace in traces)

    tracemalloc.start()
    try:
        yield held_bytes
    finally:
        tracemalloc.stop()
