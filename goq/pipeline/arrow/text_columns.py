"""Text columns built by rule, as one buffer instead of one string a row."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_GROUP: Final = 4
_GROUPS: Final = 10**_GROUP
_DIGITS: Final = np.array([f"{n:0{_GROUP}d}".encode() for n in range(_GROUPS)]).view("u4")
_WIDER: Final = 10 ** np.arange(1, 19, dtype=np.int64)


def repeated(text: str, rows: int) -> pa.Array:
    """Return the same text in every row."""
    data = text.encode()
    return _even(np.full(rows, data, f"S{len(data)}"))


def numbered(prefix: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return ``prefix`` followed by a number in each row.

    Numbers ascend and are not negative; the prefix has at least three bytes.
    """
    cuts = [0, *np.searchsorted(numbers, _WIDER).tolist(), len(numbers)]
    found = [
        _even(_of_width(prefix.encode(), numbers[start:end], width))
        for width, (start, end) in enumerate(itertools.pairwise(cuts), start=1)
        if start < end
    ]
    return pa.concat_arrays(found) if found else pa.array([], pa.string())


def _of_width(prefix: bytes, numbers: npt.NDArray[np.int64], width: int) -> npt.NDArray[Any]:
    """Return texts of equal length: groups of digits from the last to the first, then the prefix.

    The first group may have extra leading zeros; the prefix overwrites them.
    """
    total = len(prefix) + width
    groups = [f"group-{number}" for number in range(-(-width // _GROUP))]
    texts = np.empty(
        len(numbers),
        np.dtype(
            {
                "names": [*groups, "prefix"],
                "formats": ["u4"] * len(groups) + [f"S{len(prefix)}"],
                "offsets": [total - _GROUP * (n + 1) for n in range(len(groups))] + [0],
                "itemsize": total,
            }
        ),
    )
    for group in groups:
        rest = numbers // _GROUPS
        texts[group] = _DIGITS[numbers - rest * _GROUPS]
        numbers = rest
    texts["prefix"] = prefix
    return texts


def _even(texts: npt.NDArray[Any]) -> pa.Array:
    """Return texts of equal length as a column."""
    starts = np.arange(len(texts) + 1, dtype=np.int32) * np.int32(texts.itemsize)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(texts.view(np.uint8))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)
