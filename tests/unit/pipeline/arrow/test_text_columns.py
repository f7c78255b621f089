"""Columns of text made by rule say what formatting each text by itself would say."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from goq.pipeline.arrow.text_columns import numbered, repeated

_NUMBERS = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 20_000), max_size=30)


@given(_NUMBERS, st.sampled_from(["t:0", "or.ders:12:", "ä" * 90]))
@example([0, 9, 10, 99, 100, 9_999, 10_000, 10_001, 10**18 - 1, 10**18, 2**63 - 1], "t:0:")
def test_numbers_stand_behind_the_prefix_as_they_are_written(
    numbers: list[int], prefix: str
) -> None:
    numbers = sorted(numbers)
    column = numbered(prefix, np.array(numbers, np.int64))
    column.validate(full=True)
    assert column.to_pylist() == [f"{prefix}{number}" for number in numbers]


@given(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), st.integers(0, 20)
)
def test_a_text_is_repeated(text: str, rows: int) -> None:
    column = repeated(text, rows)
    column.validate(full=True)
    assert column.to_pylist() == [text] * rows
