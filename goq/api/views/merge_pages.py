"""Merges of pages of messages from several nodes.

Each node returns the next messages of its partitions, in an order that all nodes share, and the
position to continue at. Messages after the smallest such position are held back: a node may still
have messages before them. So a cursor is a position in the order and holds for all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from goq.api.routing_policy import Document, MergeContext
from goq.broker.search.cursor import read_cursor, write_cursor
from goq.model import MessageId
from goq.units import parse_time_us

PAGE_MESSAGES: Final = 100
_Place = tuple[int, ...]


def merge_by_offset(default_limit: int) -> Callable[[Sequence[Document], MergeContext], Document]:
    """Return a merge of pages in order of partition and offset; ``next`` is a message id."""

    def merge(documents: Sequence[Document], asked: MergeContext) -> Document:
        limit = int(asked.query.get("limit", default_limit))
        messages, is_cut = _merged(documents, limit, _offset_of_message, _offset_of_id)
        behind = min((t for d in documents if (t := d["next"])), key=_offset_of_id, default=None)
        return {
            **documents[0],
            "messages": messages,
            "next": messages[-1]["id"] if is_cut else behind,
        }

    return merge


def merge_by_due_time(documents: Sequence[Document], asked: MergeContext) -> Document:
    """Merge pages in the order of due time; ``next`` is due time, partition and offset."""
    limit = int(asked.query.get("limit", PAGE_MESSAGES))
    messages, is_cut = _merged(documents, limit, _due_of_message, _due_of_text)
    behind = min((t for d in documents if (t := d["next"])), key=_due_of_text, default=None)
    last = ".".join(map(str, _due_of_message(messages[-1]))) if is_cut else behind
    return {"messages": messages, "next": last}


def merge_newest_first(documents: Sequence[Document], limit: int) -> Document:
    """Merge found traces; ``next`` says where to continue in each partition."""
    found = [trace for document in documents for trace in document["traces"]]
    found.sort(key=lambda trace: _time_of_message(trace["message"]), reverse=True)
    left = [trace["message"] for trace in found[limit:]]
    return {"traces": found[:limit], "next": next_cursor(documents, left)}


def merge_found_messages(documents: Sequence[Document], limit: int) -> Document:
    """Merge found messages; ``next`` says where to continue in each partition."""
    found = [message for document in documents for message in document["messages"]]
    found.sort(key=_time_of_message, reverse=True)
    return {
        "messages": found[:limit],
        "next": next_cursor(documents, found[limit:]),
        "searched": sum(document["searched"] for document in documents),
    }


def next_cursor(documents: Sequence[Document], left: Sequence[Document]) -> str | None:
    """Return the cursor behind pages of a search, before the messages that are ``left``."""
    bounds: dict[int, int] = {}
    for document in documents:
        if document["next"] is not None:
            bounds.update(read_cursor(document["next"]))
    for message in left:
        number, offset = message["partition"], message["offset"]
        bounds[number] = max(bounds.get(number, 0), offset + 1)
    return write_cursor(bounds) if bounds else None


def _merged(
    documents: Sequence[Document],
    limit: int,
    place_of_message: Callable[[Document], _Place],
    place_of_next: Callable[[str], _Place],
) -> tuple[list[Document], bool]:
    """Return messages in order, and whether more of them follow than fit."""
    messages = sorted((m for d in documents for m in d["messages"]), key=place_of_message)
    ends = [place_of_next(text) for d in documents if (text := d["next"]) is not None]
    if ends:
        end = min(ends)
        messages = [message for message in messages if place_of_message(message) <= end]
    return messages[:limit], len(messages) > limit


def _offset_of_message(message: Document) -> _Place:
    return message["partition"], message["offset"]


def _offset_of_id(text: str) -> _Place:
    return MessageId.parse(text)[1:]


def _due_of_message(message: Document) -> _Place:
    due_us = parse_time_us(message["deliver_at"], now_us=0)
    return due_us // 1000, message["partition"], message["offset"]


def _due_of_text(text: str) -> _Place:
    return tuple(map(int, text.split(".")))


def _time_of_message(message: Document) -> Any:
    return message.get("timestamp", ""), message["partition"], message["offset"]
