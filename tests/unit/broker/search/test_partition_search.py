"""How much of a log one step of a search looks at."""

from __future__ import annotations

import pytest

from goq.broker.search.partition_search import SearchBudget, chunk_for


@pytest.mark.parametrize("partitions", [1, 10, 1_000])
def test_every_partition_takes_several_steps_within_the_work_of_a_search(partitions: int) -> None:
    budget = SearchBudget(1_000_000, 1 << 30)
    chunk, whole = chunk_for(partitions, budget), chunk_for(1, SearchBudget(10**12, 10**12))
    assert 2 * partitions * chunk.messages <= budget.messages
    assert 2 * partitions * chunk.size_bytes <= budget.size_bytes
    assert chunk.messages <= whole.messages
    assert chunk.size_bytes <= whole.size_bytes


def test_a_step_looks_at_something_however_little_work_is_left() -> None:
    assert chunk_for(1_000, SearchBudget(1, 1)) == SearchBudget(1, 1)


def test_the_step_of_a_search_that_may_do_much_is_bounded() -> None:
    assert chunk_for(1, SearchBudget(10**12, 10**12)) == chunk_for(2, SearchBudget(10**12, 10**12))
