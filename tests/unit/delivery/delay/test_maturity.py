"""The staircase of maturings against the list of all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from goq.delivery.delay.maturity import Maturity

PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12)


@given(PAIRS)
def test_the_staircase_says_what_all_maturings_together_say(pairs: list[tuple[int, int]]) -> None:
    maturity = Maturity(pairs)
    offsets, due_ms = (grid.ravel() for grid in np.meshgrid(np.arange(14), np.arange(14)))
    expected = [
        any(offset < end and due <= up_to for up_to, end in pairs)
        for offset, due in zip(offsets.tolist(), due_ms.tolist(), strict=True)
    ]
    assert maturity.matured(offsets, due_ms).tolist() == expected
    asked = [maturity.has_matured(int(o), int(d)) for o, d in zip(offsets, due_ms, strict=True)]
    assert asked == expected
    assert maturity.pairs == sorted(maturity.pairs, reverse=True)
    assert [end for _, end in maturity.pairs] == sorted({end for _, end in maturity.pairs})
    assert Maturity(maturity.pairs).pairs == maturity.pairs


def test_a_clock_that_runs_forward_leaves_one_pair() -> None:
    maturity = Maturity()
    for tick in range(1000):
        maturity.mature(tick, tick // 2 + 1)
    assert maturity.pairs == [(999, 500)]


def test_a_message_published_after_the_clock_was_set_back_has_not_matured() -> None:
    maturity = Maturity([(900, 40)])
    maturity.mature(500, 60)
    assert maturity.pairs == [(900, 40), (500, 60)]
    assert maturity.has_matured(39, 900)
    assert not maturity.has_matured(40, 700)
    assert not maturity.has_matured(50, 700)
    assert maturity.has_matured(50, 500)
    maturity.mature(900, 60)
    assert maturity.pairs == [(900, 60)]


def test_a_waiting_message_given_a_time_that_is_over_matures_with_the_next_maturing() -> None:
    maturity = Maturity([(900, 40)])
    maturity.reschedule(7, 600)
    assert not maturity.has_matured(7, 600)
    assert maturity.matured(np.array([6, 7]), np.array([600, 600])).tolist() == [True, False]
    again = Maturity(maturity.pairs, maturity.exempt)
    for each in (maturity, again):
        each.mature(500, 60)
        assert not each.has_matured(7, 600)
        each.mature(600, 60)
        assert each.has_matured(7, 600)
        assert each.exempt == []


def test_a_waiting_message_given_a_later_time_again_is_no_longer_exempt() -> None:
    maturity = Maturity([(900, 40)])
    maturity.reschedule(7, 600)
    maturity.reschedule(7, 901)
    assert maturity.exempt == []
    assert not maturity.has_matured(7, 901)


def test_offsets_that_are_given_to_others_have_not_matured() -> None:
    maturity = Maturity([(900, 40), (500, 60)], exempt=[(20, 600), (45, 100)])
    maturity.truncate(30)
    assert maturity.pairs == [(900, 30)]
    assert maturity.exempt == [(20, 600)]
    maturity.truncate(0)
    assert (maturity.pairs, maturity.exempt) == ([], [])


def test_what_concerns_only_deleted_messages_is_forgotten() -> None:
    maturity = Maturity([(900, 40), (500, 60)], exempt=[(39, 600), (40, 100), (45, 100)])
    maturity.trim(39)
    assert maturity.pairs == [(900, 40), (500, 60)]
    maturity.trim(40)
    assert (maturity.pairs, maturity.exempt) == ([(500, 60)], [(40, 100), (45, 100)])
