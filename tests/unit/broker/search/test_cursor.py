"""Cursors of searches: what was written is read, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.broker.search.cursor import read_cursor, write_cursor
from goq.errors import InvalidInput

PARTITIONS = st.integers(0, limits.PARTITIONS_PER_TOPIC_MAX - 1)
OFFSETS = st.integers(0, 2**63 - 1)


@given(st.dictionaries(PARTITIONS, OFFSETS, min_size=1, max_size=20))
def test_a_cursor_is_read_as_it_was_written(bounds: dict[int, int]) -> None:
    text = write_cursor(bounds)
    assert read_cursor(text) == bounds
    assert text.replace("-", "").replace("_", "").isalnum()


@given(st.text(max_size=20) | st.text(alphabet="ABCabc019-_", max_size=12))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        bounds = read_cursor(text)
    except InvalidInput:
        return
    assert write_cursor(bounds) == text


@pytest.mark.parametrize("text", ["", "A", "gA", "AA==", "AA", "/w", "\ud800", "A" * 8000])
def test_texts_that_look_like_a_cursor_are_none(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_cursor(text)
    assert raised.value.field == "cursor"


def test_an_offset_that_no_message_can_have_is_refused() -> None:
    assert read_cursor(write_cursor({1: 2**63 - 1})) == {1: 2**63 - 1}
    with pytest.raises(InvalidInput):
        read_cursor(write_cursor({1: 2**63}))


def test_a_partition_that_no_topic_has_is_refused() -> None:
    assert read_cursor(write_cursor({limits.PARTITIONS_PER_TOPIC_MAX - 1: 5}))
    with pytest.raises(InvalidInput):
        read_cursor(write_cursor({limits.PARTITIONS_PER_TOPIC_MAX: 5}))


def test_a_cursor_of_a_thousand_partitions_fits_into_a_request() -> None:
    bounds = dict.fromkeys(range(limits.PARTITIONS_PER_TOPIC_MAX), 2**28 - 1)
    assert len(write_cursor(bounds)) < limits.TARGET_BYTES_MAX - 1024
