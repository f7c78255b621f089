"""A topic whose disk is slow: its partitions do not take all threads that write."""

from __future__ import annotations

import asyncio
from pathlib import Path

from goq import limits
from tests.support.broker.harness import BrokenDisk, broker_on, publish, run
from tests.support.eventually import until

PARTITIONS = 2 * limits.COMMIT_THREADS


def test_large_batches_of_a_topic_that_hangs_hold_up_no_other_topic(tmp_path: Path) -> None:
    async def main() -> None:
        disk, large = BrokenDisk(), bytes(limits.JOURNAL_ENTRY_BYTES_MAX)
        async with broker_on(tmp_path, disk=disk) as broker:
            slow = await broker.topic_admin.create("slow", PARTITIONS)
            other = await broker.topic_admin.create("other", 1)
            disk.hold("slow/")
            hanging = [
                asyncio.create_task(publish(slow, large, partition=number))
                for number in range(PARTITIONS)
            ]
            await until(disk.holding.is_set)
            for number in range(3):
                assert await asyncio.wait_for(publish(other, large), 30) == [number]
            assert not any(each.done() for each in hanging)
            disk.release()
            assert await asyncio.gather(*hanging) == [[0]] * PARTITIONS

    run(main())
