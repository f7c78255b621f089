"""How much of a copy runs between two looks at the load of the node."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from goq.backup.manifest import StoredLog, StoredPartition
from goq.backup.node_source import _advance

EMPTY = StoredPartition(0, StoredLog(0, (), ()), StoredLog(0, (), ()))


def copying(pieces: int, done: list[int]) -> Generator[int, None, StoredPartition]:
    for number in range(pieces):
        done.append(number)
        yield 1
    return EMPTY


@pytest.mark.parametrize(("step_s", "copied"), [(0.0, 1), (60.0, 3)])
def test_at_full_load_a_copy_moves_by_one_piece_and_without_any_by_many(
    step_s: float, copied: int
) -> None:
    done = list[int]()
    stored = _advance(copying(3, done), step_s)
    assert len(done) == copied
    assert stored is (EMPTY if copied == 3 else None)
