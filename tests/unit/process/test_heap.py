from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from goq.limits import MIB
from goq.process.heap import TrimPolicy

FRAGMENTED = """
import asyncio, ctypes, random
from goq.process.heap import resident_bytes, set_up_heap, trim_heap

set_up_heap()
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.free.argtypes = [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

async def main():
    before = resident_bytes()
    trimming = asyncio.create_task(trim_heap())
    await asyncio.sleep(0)
    kept = []
    for number in range(8000):
        buffer = c.malloc(20_000)
        c.memset(buffer, 1, 20_000)
        kept.append(buffer)
    random.Random(1).shuffle(kept)
    for buffer in kept[800:]:
        c.free(buffer)
    held = resident_bytes() - before
    assert held > 100e6, held
    async with asyncio.timeout(30):
        while resident_bytes() - before > held / 2:
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


def test_growth_by_32_mib_is_given_back_at_once() -> None:
    policy = TrimPolicy(100 * MIB, 0.0)
    assert not policy.is_due(131 * MIB, 1.0)
    assert policy.is_due(132 * MIB, 1.0)
    policy.on_trim(120 * MIB, 1.0)
    assert not policy.is_due(132 * MIB, 2.0)
    assert policy.is_due(152 * MIB, 2.0)


def test_smaller_growth_is_given_back_after_a_minute() -> None:
    policy = TrimPolicy(100 * MIB, 0.0)
    assert not policy.is_due(104 * MIB, 59.0)
    assert policy.is_due(104 * MIB, 60.0)
    assert not policy.is_due(103 * MIB, 60.0)


def test_growth_counts_from_the_least_memory_since_the_last_trim() -> None:
    policy = TrimPolicy(100 * MIB, 0.0)
    assert not policy.is_due(60 * MIB, 1.0)
    assert policy.is_due(92 * MIB, 2.0)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_that_is_free_below_small_objects_goes_back_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", FRAGMENTED], check=True, timeout=60)


BATCHES = """
import resource
from goq.process.heap import set_up_heap

set_up_heap()
body = bytes(1_000_000)

def page_faults_of(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        bytearray(body)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults_of(1)
print(page_faults_of(100))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="is about glibc")
def test_buffers_of_batches_that_are_freed_are_used_again_without_page_faults() -> None:
    found = subprocess.run(
        [sys.executable, "-c", BATCHES], check=True, timeout=60, capture_output=True
    )
    assert int(found.stdout) < 1000  # one for each page would be 24,400
