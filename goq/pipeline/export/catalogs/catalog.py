"""A catalog of tables to which an export adds its files."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from goq.pipeline.export.destination import Destination

ATTEMPTS = 5
"""How often a commit is tried when others commit to the table at the same time."""


class Registered(NamedTuple):
    """The number of files that a run added to a table."""

    table: str
    files: int


class TableCatalog(Protocol):
    """A catalog that has a table for each exported table."""

    def register(self, target: Destination, topic: str) -> list[Registered]:
        """Add the finished files of a topic that its tables lack; the caller has claimed the topic.

        Raises ``Conflict`` for a table that is not of this export.
        """
        ...


def line_of(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
