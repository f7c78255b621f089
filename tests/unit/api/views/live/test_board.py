"""Lookers of one audience share samples, and each gets what changed since its line before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import msgspec
import pytest

from goq import limits
from goq.api.schemas.live import LiveTopicOut
from goq.api.views.live.board import (
    LiveAsked,
    LiveBoard,
    LiveBoards,
    LiveSample,
    next_line_s,
)
from goq.api.views.live.selection import LiveSelection
from goq.clock import ManualClock

Lines = AsyncGenerator[bytes, None]


def topic(name: str, published: int = 0) -> LiveTopicOut:
    return LiveTopicOut(name, 1, 0, published, 0, published, 0, 0, 0, 0, 0, 0, 0, [])


class Node:
    """A node whose samples are counted."""

    def __init__(self, *names: str) -> None:
        self.topics = {name: topic(name) for name in names}
        self.samples = 0

    async def sample(self) -> LiveSample:
        self.samples += 1
        await asyncio.sleep(0)
        return LiveSample([], dict(sorted(self.topics.items())))

    def board(self, selection: LiveSelection | None = None) -> LiveBoard:
        return LiveBoard(self.sample, "n1", ManualClock(), selection or LiveSelection())

    def publish(self, name: str) -> None:
        before = self.topics.get(name)
        self.topics[name] = topic(name, 1 + (before.published_messages if before else 0))


async def seen(board: LiveBoard, since: int = 0) -> tuple[int, dict[str, Any]]:
    await board.refresh(0)
    number, parts = await board.line(since, 1.0)
    found = [msgspec.json.decode(part) for part in parts]
    found[0]["topics"] = [each["name"] for line in found for each in line["topics"]]
    return number, found[0]


def test_a_line_has_what_changed_since_the_line_of_that_looker() -> None:
    async def run() -> None:
        node = Node("a", "b", "c")
        board = node.board()
        first, line = await seen(board)
        assert line["topics"] == ["a", "b", "c"]
        node.publish("b")
        second, line = await seen(board, first)
        assert line["topics"] == ["b"]
        node.publish("c")
        del node.topics["a"]
        _, line = await seen(board, second)
        assert (line["topics"], line["removed"]) == (["c"], ["a"])
        third, line = await seen(board, first)
        assert (line["topics"], line["removed"]) == (["b", "c"], ["a"])
        node.publish("a")
        _, line = await seen(board, third)
        assert (line["topics"], line["removed"]) == (["a"], [])
        _, line = await seen(board)
        assert (line["topics"], line["removed"]) == (["a", "b", "c"], [])

    asyncio.run(run())


def test_totals_follow_all_topics_also_those_that_are_not_listed() -> None:
    async def run() -> None:
        node = Node("a", "b", "c", "d")
        board = node.board(LiveSelection(top=2))
        number, line = await seen(board)
        assert (line["topics"], line["is_partial"]) == (["a", "b"], True)
        for _ in range(3):
            node.publish("d")
        number, line = await seen(board, number)
        assert line["topics"] == []
        assert (line["totals"]["topics"], line["totals"]["published_messages"]) == (4, 3)
        del node.topics["a"]
        number, line = await seen(board, number)
        assert (line["topics"], line["removed"]) == (["c"], ["a"])
        del node.topics["d"]
        _, line = await seen(board, number)
        assert (line["totals"]["published_messages"], line["is_partial"]) == (0, False)

    asyncio.run(run())


def test_lookers_share_samples_and_the_board_goes_with_the_last_of_them() -> None:
    async def run() -> None:
        node, boards = Node("a"), LiveBoards()
        asked = LiveAsked(0.05, 5)

        async def look(*, is_new: bool = False) -> int:
            lines = boards.lines("all", node.board, asked, is_new=is_new)
            return len([line async for line in lines])

        assert await asyncio.gather(*(look() for _ in range(10))) == [5] * 10
        assert node.samples <= 5
        made = node.samples
        assert await look(is_new=True) == 5
        assert node.samples > made

    asyncio.run(run())


def test_a_looker_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    async def run() -> None:
        node, boards = Node("a"), LiveBoards()
        kept: list[LiveBoard] = []

        def make() -> LiveBoard:
            kept.append(node.board())
            return kept[-1]

        lines = boards.lines("all", make, LiveAsked(1.0, None))
        await anext(lines)
        assert kept[0].looker_count == 1
        await lines.aclose()
        assert kept[0].looker_count == 0
        assert boards._boards == {}

    asyncio.run(run())


def test_the_busiest_of_many_topics_are_told_to_who_asks_again_and_again() -> None:
    async def run() -> list[list[str]]:
        node, boards = Node(*(f"t{n}" for n in range(50))), LiveBoards()
        asked = LiveAsked(0.05, 1)
        board = partial(node.board, LiveSelection("T", "publish", 2))
        found = []
        for busy in ("t7", "t7", "t30"):
            for _ in range(3):
                node.publish(busy)
            node.publish("t9")
            lines = boards.lines("all", board, asked, is_new=True)
            line = msgspec.json.decode(b"".join([part async for part in lines]))
            assert line["is_partial"]
            assert line["totals"]["topics"] == 50
            found.append(sorted(topic["name"] for topic in line["topics"]))
        return found

    assert asyncio.run(run()) == [["t7", "t9"], ["t7", "t9"], ["t30", "t9"]]


def test_a_looker_goes_on_after_its_cursor_and_begins_anew_where_that_is_not_known() -> None:
    async def run() -> None:
        node, boards = Node("a", "b"), LiveBoards()

        async def look(after: str) -> dict[str, Any]:
            asked = LiveAsked(0.5, 1, after)
            lines = boards.lines("all", node.board, asked, is_new=True)
            found: dict[str, Any] = msgspec.json.decode(b"".join([part async for part in lines]))
            return found

        first = await look("")
        node.publish("b")
        second = await look(first["cursor"])
        assert ([each["name"] for each in second["topics"]], second["is_whole"]) == (["b"], False)
        later = second["cursor"].replace("-2", "-9")
        for unknown in ("", "x", f"other-{first['cursor']}", later, first["cursor"] + "x"):
            whole = await look(unknown)
            assert ([each["name"] for each in whole["topics"]], whole["is_whole"]) == (
                ["a", "b"],
                True,
            )

    asyncio.run(run())


def test_who_missed_the_end_of_too_many_topics_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIVE_TOPICS_MAX", 3)

    async def run() -> None:
        node = Node("a", "b")
        board = node.board()
        first, _ = await seen(board)
        for number in range(5):
            node.topics = {f"t{number}": topic(f"t{number}")}
            last, _ = await seen(board)
        assert board.has_forgotten(first)
        assert not board.has_forgotten(last)
        assert not board.has_forgotten(0)

    asyncio.run(run())


def test_only_samples_after_the_first_delay_the_lines_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy_s = iter((0.0, 10.0, 10.5))
    monkeypatch.setattr(time, "thread_time", lambda: next(busy_s))

    async def run() -> None:
        board = Node("a").board()
        await board.refresh(0)
        assert board.took_s == 0.0
        await board.refresh(0)
        assert board.took_s == 0.5

    asyncio.run(run())


@pytest.mark.parametrize(
    ("now_s", "interval_s", "took_s", "expected_s"),
    [
        (100.0, 1.0, 0.001, 101.0),
        (100.4, 1.0, 0.001, 101.0),
        (100.6, 1.0, 0.001, 102.0),
        (99.9999, 1.0, 0.001, 101.0),
        (100.0, 1.0, 0.35, 105.0),
        (100.0, 60.0, 30.0, 180.0),
    ],
)
def test_lines_come_at_multiples_of_the_interval(
    now_s: float, interval_s: float, took_s: float, expected_s: float
) -> None:
    assert next_line_s(now_s, interval_s, took_s) == expected_s
