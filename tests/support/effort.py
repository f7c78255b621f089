"""How much of a test's cases ``make test`` runs: the others are long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark.structures import ParameterSet


def first_of(cases: Sequence[object], quick: int) -> list[ParameterSet]:
    """Return the cases as parameters; all after the first ``quick`` are long."""
    assert 0 < quick < len(cases)
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*value, marks=[pytest.mark.long] * (place >= quick))
        for place, value in enumerate(values)
    ]
