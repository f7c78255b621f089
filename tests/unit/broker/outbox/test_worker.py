"""A worker of an outbox runs while there are entries, and never again once it is stopped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from goq.broker.outbox.worker import OutboxWorker


def test_a_worker_that_was_stopped_is_not_woken_again() -> None:
    async def run() -> None:
        begun: list[asyncio.Future[None]] = []

        def start(work: Any) -> asyncio.Future[None]:
            work.close()
            begun.append(asyncio.get_running_loop().create_future())
            return begun[-1]

        partition: Any = SimpleNamespace(
            identity=None, message_reader=None, outbox_entries=["an entry"]
        )
        context: Any = SimpleNamespace(tasks=SimpleNamespace(start=start))
        nowhere: Any = None
        worker = OutboxWorker(partition, nowhere, context, 0)
        for _ in range(2):
            worker.wake()
            assert len(begun) == 1
        begun[0].set_result(None)
        partition.outbox_entries = []
        worker.wake()
        assert len(begun) == 1
        partition.outbox_entries = ["another"]
        worker.wake()
        assert len(begun) == 2
        await worker.stop()
        assert begun[1].cancelled()
        worker.wake()
        assert len(begun) == 2

    asyncio.run(run())
