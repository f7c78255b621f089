"""The C heap of the process: how it is divided, and how its free memory goes back to the system.

glibc gives each thread an arena, up to eight for each core, and returns memory only from an
arena's end. Buffers of frames and archive chunks, freed in another order than they were made,
leave most of an arena free below a small object. Under a steady load the process grew by 100 MB a
minute like that. So there are two arenas, buffers of 4 MiB and more are mapped on their own, and
:func:`trim_heap` returns free pages: as soon as the process has grown by 32 MiB, so that a trim
takes a few milliseconds, and within a minute at rest.

As much is kept at the end of an arena. Once the bound of large buffers is set, glibc no longer
raises its own 128 KiB: each buffer of a batch would go back at once, and the next one would cost a
page fault for each 4 KiB, more than to copy it.

Other C libraries have no such calls; nothing is changed there.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path

from goq import limits

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BUFFER_BYTES = 4 * limits.MIB
_ARENAS_MAX = 2
_CHECK_PAUSE_S = 2.0
_REST_S = 60.0
_GROWTH_BYTES_MAX = 32 * limits.MIB
_GROWTH_BYTES_MIN = 4 * limits.MIB
_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def set_up_heap() -> None:
    """Bound the arenas and map large buffers; to be called before threads are started.

    glibc raises its bound of large buffers to the largest one freed so far, up to 32 MiB, unless
    it is set.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BUFFER_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _GROWTH_BYTES_MAX)
        mallopt(_M_ARENA_MAX, _ARENAS_MAX)


class TrimPolicy:
    """Decides when free memory is returned, from the resident memory and monotonic time."""

    def __init__(self, resident_bytes: int, now_s: float) -> None:
        self._least_bytes = resident_bytes
        self._trimmed_s = now_s

    def is_due(self, resident_bytes: int, now_s: float) -> bool:
        """Return whether the memory has grown enough since the last trim."""
        self._least_bytes = min(self._least_bytes, resident_bytes)
        growth_bytes = resident_bytes - self._least_bytes
        has_rested = now_s - self._trimmed_s >= _REST_S
        return growth_bytes >= (_GROWTH_BYTES_MIN if has_rested else _GROWTH_BYTES_MAX)

    def on_trim(self, resident_bytes: int, now_s: float) -> None:
        """Record a trim, and the memory that it left."""
        self._least_bytes = resident_bytes
        self._trimmed_s = now_s


async def trim_heap() -> None:
    """Return free memory to the system from time to time, until cancelled."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is None or not _STATM.exists():
        return
    policy = TrimPolicy(resident_bytes(), time.monotonic())
    while True:
        await asyncio.sleep(_CHECK_PAUSE_S)
        if policy.is_due(resident_bytes(), time.monotonic()):
            await asyncio.to_thread(malloc_trim, 0)
            policy.on_trim(resident_bytes(), time.monotonic())


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
