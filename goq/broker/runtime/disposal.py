"""The disposal of containers with many objects: in slices, as it would hold the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from goq.clock import TimeSlice

Container = dict[Any, Any] | list[Any]
_FREED_AT_ONCE = 500


async def dispose(containers: Iterable[Container]) -> None:
    """Empty containers that nothing else uses any more, in slices."""
    time_slice = TimeSlice()
    for number, each in enumerate(containers, start=1):
        while each:
            if isinstance(each, dict):
                for _ in range(min(len(each), _FREED_AT_ONCE)):
                    each.popitem()
            else:
                del each[-_FREED_AT_ONCE:]
            if time_slice.is_over:
                await time_slice.next()
        if not number % _FREED_AT_ONCE and time_slice.is_over:  # many are empty
            await time_slice.next()
