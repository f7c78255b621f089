"""Batches: their bounds, and the results of their entries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from goq.sqs.protocol.errors import SqsError

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


class _Entry(Protocol):
    id: str | None


E = TypeVar("E", bound=_Entry)


def checked_entries(entries: Sequence[E] | None, entries_max: int) -> Sequence[E]:
    """Return the entries of a batch. Raises ``SqsError``."""
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > entries_max:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {entries_max}. You have sent"
            f" {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if entry.id is None or not _ID.fullmatch(entry.id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and"
                " underscores. It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)
    return entries


class BatchResult:
    """The results of a batch's entries, in the order of the entries."""

    def __init__(self) -> None:
        self._successful: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []

    def add(self, entry_id: str | None, result: dict[str, Any] | None = None) -> None:
        """Add an entry that was done."""
        self._successful.append({"Id": entry_id, **(result or {})})

    def fail(self, entry_id: str | None, error: SqsError) -> None:
        """Add an entry that was not done."""
        self._failed.append(
            {
                "Id": entry_id,
                "SenderFault": error.is_of_sender,
                "Code": error.query_code,
                "Message": error.message,
            }
        )

    @property
    def answer(self) -> dict[str, Any]:
        """The answer; a list without an entry is absent."""
        found = {"Successful": self._successful, "Failed": self._failed}
        return {name: entries for name, entries in found.items() if entries}
