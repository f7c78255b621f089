"""How much memory a part of goq holds, whatever else runs in the process of the tests."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator

_CALLS = 12  # from a test to what it makes, at most


@contextlib.contextmanager
def memory_of(package: str) -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes code of a package, as ``goq/delivery``, has got since."""
    with _traced(f"*/{package}/*", calls=1) as held_bytes:
        yield held_bytes


@contextlib.contextmanager
def memory_below(file: str) -> Iterator[Callable[[], int]]:
    """Yield what tells how many bytes all code that a file calls has got since."""
    with _traced(file, calls=_CALLS) as held_bytes:
        yield held_bytes


@contextlib.contextmanager
def tracing(calls: int = 1) -> Iterator[None]:
    """Trace memory; the garbage of earlier tests ends before, so its end counts for nothing."""
    gc.collect()
    gc.disable()
    tracemalloc.start(calls)
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@contextlib.contextmanager
def _traced(pattern: str, calls: int) -> Iterator[Callable[[], int]]:
    only = tracemalloc.Filter(inclusive=True, filename_pattern=pattern, all_frames=True)

    def held_bytes() -> int:
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces([only]).traces
        return sum(trace.size for trace in traces)

    with tracing(calls):
        yield held_bytes
