from __future__ import annotations

from goq.log_throttle import LogThrottle


def test_one_record_of_a_kind_is_admitted_in_a_period_with_the_number_left_out() -> None:
    throttle = LogThrottle(10)
    assert throttle.admit("a", 0) == 0
    assert throttle.admit("b", 0) == 0
    assert [throttle.admit("a", now_s) for now_s in (0, 1, 9.9)] == [None, None, None]
    assert throttle.admit("a", 10) == 3
    assert throttle.admit("a", 15) is None
    assert throttle.admit("b", 15) == 0
    assert throttle.admit("a", 100) == 1
    assert throttle.admit("a", 200) == 0
