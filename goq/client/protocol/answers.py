"""The parts of JSON answers that the client itself uses, checked. ``results`` are for its user."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from goq.errors import GoqError

Shape = TypeVar("Shape", bound=msgspec.Struct)


class PartitionAnswer(msgspec.Struct):
    """A partition of a topic; the offsets are 0 where no node leads it."""

    partition: int
    start_offset: int = 0
    high_watermark: int = 0


class TopicAnswer(msgspec.Struct):
    """A topic; ``time`` is the node's clock, None from a node that does not tell.

    ``id`` tells it from others of its name, "" from a node that does not tell.
    """

    partitions: list[PartitionAnswer]
    settings: dict[str, str] = {}
    time: str | None = None
    id: str = ""


class TopicNameAnswer(msgspec.Struct):
    """A topic in a list, by its name."""

    name: str


class TopicsAnswer(msgspec.Struct):
    """The topics that there are."""

    topics: list[TopicNameAnswer]


class MessagesAnswer(msgspec.Struct):
    """Messages as JSON objects, which are decoded for the user."""

    messages: list[dict[str, Any]]


class ProducerPartitionAnswer(msgspec.Struct):
    """How far a producer got in a partition; ``offset`` is that of its last message."""

    partition: int
    next_sequence: int
    offset: int | None = None


class ProducerAnswer(msgspec.Struct):
    """How far a producer got in the partitions that know it."""

    partitions: list[ProducerPartitionAnswer]


class StreamAnswer(msgspec.Struct):
    """The credit of a stream, and how many messages it has in flight."""

    max_in_flight: int
    in_flight: int


def read_answer(kind: type[Shape], answer: object) -> Shape:
    """Return an answer in its shape; raise ``GoqError`` if it has another."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise GoqError(f"the answer is not goq's: {error}; is it a goq node?") from None
