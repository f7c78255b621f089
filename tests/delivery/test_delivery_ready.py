from __future__ import annotations

import numpy as np

from goq.delivery.ready import Ready


def runs(ready: Ready, lane: int, tenant: int) -> list[tuple[int, int]]:
    queue = ready.lanes[lane].queues[tenant]
    return [queue.run(number) for number in range(queue.first, queue.end)]


def test_rows_enter_the_queues_of_their_lane_and_tenant_as_runs() -> None:
    ready = Ready()
    columns = ([1, 2, 3, 4, 5, 9], [1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 2, 0])
    offsets, lanes, tenants = (np.array(column, np.int64) for column in columns)
    ready.add_rows(offsets, lanes, tenants, 5)
    assert runs(ready, 0, 0) == [(3, 4)]
    assert runs(ready, 1, 0) == [(1, 3), (4, 5), (9, 10)]
    assert runs(ready, 1, 2) == [(5, 6)]


def test_what_goes_on_where_the_last_run_ended_makes_no_new_run() -> None:
    ready = Ready()
    for start in range(0, 1000, 10):
        ready.add(1, 0, start, start + 10, start)
    assert runs(ready, 1, 0) == [(0, 1000)]
    assert ready.run_count == 1


def test_letting_go_of_runs_says_which_messages_may_be_missing_now() -> None:
    ready = Ready()
    for start in range(0, 6000, 2):
        ready.add(1, 0, start, start + 1, 0)
    ready.release([{(1, 0): (2000, 0)}], 6000)
    assert ready.complete_from == 2 * 1999 + 1
    assert ready.run_count == 1000
    ready.release([], 6000)
    assert (ready.complete_from, ready.run_count) == (6000, 0)
