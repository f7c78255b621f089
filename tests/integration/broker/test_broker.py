"""The broker of a node: what its close leaves."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from goq.errors import GoqError, ShuttingDown
from tests.support.broker.harness import broker_on, leased, options, publish, run
from tests.support.eventually import until


def test_a_broker_that_was_closed_leaves_no_thread_and_takes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        before = set(threading.enumerate())
        async with broker_on(tmp_path, journaled=True) as broker:
            topic = await broker.topic_admin.create("t")
            await publish(topic, b"v")
            assert await broker.background.run(lambda: 1) == 1
            assert await broker.archive.in_thread(lambda: 2) == 2
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            assert leased(await waiting) == [(0, 1, b"v")]
            waiting = asyncio.ensure_future(topic.receiver.receive("h", options(wait_ms=60_000)))
            await until(lambda: topic.receiver.waiters.count("h"))
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(GoqError):
            await publish(topic, b"late")
        names = {each.name for each in set(threading.enumerate()) - before}
        assert not [name for name in names if name.startswith("goq")]

    run(test())
