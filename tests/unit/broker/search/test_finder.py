"""How the searches of several partitions become one page: newest first, within the work allowed."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from goq.broker.search.finder import TopicSearch
from goq.broker.search.partition_search import FoundMessage, SearchBudget


class Search:
    """The search of a partition that finds one message a step, by their times, offsets falling."""

    def __init__(self, number: int, *times_us: int, empty_steps: int = 0) -> None:
        self.number = number
        self.found = deque[FoundMessage]()
        self.time_us = max(times_us, default=0)
        self.left = list(times_us)
        self.bound = 10 * len(times_us)
        self.is_done = not times_us
        self.unreadable = 0
        self.steps = 0
        self.empty_steps = empty_steps

    def step(self, budget: SearchBudget) -> None:
        self.steps += 1
        budget.messages -= 1
        if self.empty_steps:
            self.empty_steps -= 1
            return
        self.bound -= 10
        self.time_us = self.left.pop(0)
        self.found.append(FoundMessage(self.number, self.bound, self.time_us))
        self.is_done = not self.left


def search_of(*searches: Search, limit: int = 100, messages: int = 1000) -> TopicSearch:
    given: Any = searches
    return TopicSearch(given, limit, SearchBudget(messages, 1000))


def times_us(search: TopicSearch) -> list[int]:
    return [found.time_us for found in search.found]


def test_the_newest_messages_of_all_partitions_come_first() -> None:
    search = search_of(Search(0, 9, 5, 4), Search(1), Search(2, 8, 7, 1))
    assert search.run(100)
    assert times_us(search) == [9, 8, 7, 5, 4, 1]
    assert [(found.partition, found.offset) for found in search.found[:2]] == [(0, 20), (2, 20)]
    assert search.bounds() == {}


def test_a_page_ends_when_it_is_full_and_says_where_each_partition_goes_on() -> None:
    search = search_of(Search(0, 9, 5, 4), Search(2, 8, 7, 1), limit=3)
    assert search.run(100)
    assert times_us(search) == [9, 8, 7]
    assert search.bounds() == {0: 11, 2: 10}, "what was found and not taken is found again"


def test_a_search_stops_after_its_steps_and_goes_on_with_the_next_ones() -> None:
    one, two = Search(0, 9, 5), Search(1, 8, 7)
    search = search_of(one, two)
    assert not search.run(0)
    assert (one.steps, two.steps) == (0, 0)
    assert not search.run(3)
    assert one.steps + two.steps == 3
    assert search.run(2)
    assert times_us(search) == [9, 8, 7, 5]


@pytest.mark.parametrize(
    ("messages", "found_us"), [(1, [9]), (2, [9, 5]), (3, [9, 8, 5]), (4, [9, 8, 7, 5])]
)
def test_a_search_that_has_done_its_work_gives_what_it_found(
    messages: int, found_us: list[int]
) -> None:
    search = search_of(Search(0, 9, 5), Search(1, 8, 7), messages=messages)
    assert search.run(100)
    assert times_us(search) == found_us
    assert bool(search.bounds()) == (messages < 4)


def test_a_step_that_finds_nothing_is_a_step() -> None:
    search = search_of(Search(0, 9, empty_steps=2))
    assert not search.run(2)
    assert search.found == []
    assert search.run(1)
    assert times_us(search) == [9]
