"""The callbacks of what is closed: none.

A part of a partition calls the partition back, which refers to the part: a cycle of references,
which only a collection of garbage would free, with all requests waiting. So a part that closes
forgets its callbacks.
"""

from __future__ import annotations


def ignore(*_arguments: object) -> None:
    """Do nothing: the owner has closed this part and is not called any more."""
