"""What a partition has delayed, read from its columns and its state, against a twin."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import cast

import pytest

from goq.broker.partition.delayed_reader import DelayedMessage, DelayedReader
from goq.storage.log.reader import LogReader
from tests.support.delivery.pair import Pair
from tests.support.delivery.steps import random_messages, random_pair, step


def delayed_pair(rng: random.Random) -> Pair:
    """Return a history of a partition in which many messages are delayed and rescheduled."""
    pair = random_pair(rng)
    pair.has_rows = True
    for _ in range(rng.randint(0, 25)):
        step(pair, rng)
        if pair.twin.end < 50 and rng.random() < 0.4:
            messages = random_messages(pair, rng, 6, is_plain=False)
            due_ms = [pair.now_ms + rng.choice([0, 1, 1, 2, 30, 4000]) for _ in messages]
            pair.publish(
                [m._replace(due_ms=due) for m, due in zip(messages, due_ms, strict=True)],
                is_plain=False,
            )
        for offset in sorted(pair.twin.waiting):
            if rng.random() < 0.1:
                pair.reschedule(offset, pair.now_ms + rng.choice([1, 2, 30, 4000]))
            elif rng.random() < 0.05:
                pair.cancel(offset)
    return pair


@pytest.mark.parametrize("seed", range(60))
def test_delayed_messages_are_those_of_the_twin(seed: int) -> None:
    rng = random.Random(seed)
    pair = delayed_pair(rng)
    twin, reader = pair.twin, DelayedReader(cast(LogReader, pair.log), pair.real)
    expected = sorted((due_ms, offset) for offset, due_ms in twin.waiting.items())
    assert reader.count() == len(expected)
    for _ in range(8):
        start, end = sorted(rng.randint(twin.start, twin.end) for _ in range(2))
        within = sorted(offset for _, offset in expected if start <= offset < end)
        runs = reader.runs(start, end)
        assert [offset for run in runs for offset in range(*run)] == within
        assert all(one[1] < other[0] for one, other in pairwise(runs))
        assert reader.first(start, end) == min(within, default=None)
        count = rng.choice([1, 2, 5, 100])
        offset = rng.randint(-1, twin.end)
        after_ms, until_ms = (rng.choice([d for d, _ in expected] or [5]) for _ in range(2))
        until_ms = rng.choice([until_ms, until_ms + 1, 2**62])
        chosen = [each for each in expected if (after_ms, offset) < each and each[0] < until_ms]
        found = reader.earliest(DelayedMessage(after_ms, offset), until_ms, count)
        assert [tuple(each) for each in found] == chosen[:count]
    every = reader.earliest(DelayedMessage(0, -1), 2**62, 1000)
    assert [tuple(each) for each in every] == expected
