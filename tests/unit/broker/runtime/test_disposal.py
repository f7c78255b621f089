"""Containers of many objects are emptied in turns of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from goq import clock
from goq.broker.runtime import disposal
from goq.broker.runtime.disposal import dispose


def test_others_get_a_turn_while_containers_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    monkeypatch.setattr(disposal, "_FREED_AT_ONCE", 10)
    numbers, names = list(range(25)), {n: str(n) for n in range(31)}
    left: list[int] = []

    async def main() -> None:
        disposing = asyncio.create_task(dispose([numbers, names, []]))
        while not disposing.done():
            left.append(len(numbers) + len(names))
            await asyncio.sleep(0)
        await disposing

    asyncio.run(main())
    assert left[:8] == [56, 46, 36, 31, 21, 11, 1, 0]
    assert not numbers
    assert not names


def test_others_get_a_turn_among_many_empty_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    monkeypatch.setattr(disposal, "_FREED_AT_ONCE", 10)
    turns, empty = list[None](), [list[int]() for _ in range(59)]

    async def main() -> None:
        disposing = asyncio.create_task(dispose(empty))
        while not disposing.done():
            turns.append(None)
            await asyncio.sleep(0)
        await disposing

    asyncio.run(main())
    assert len(turns) == 6
