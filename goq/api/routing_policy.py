"""Routing policies: the nodes that answer a route when several lead the topic's partitions.

A route by itself answers from the partitions of its node. Its policy says what that means for a
cluster: any node answers, or the leader of one partition, or all leaders with their answers merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

import msgspec

from goq.errors import GoqError
from goq.http.message import Request
from goq.model import MessageId

STREAM_ID: Final = "Goq-Stream"
"""Response header with the id of a stream."""
UNBUFFERED: Final = "X-Accel-Buffering"
"""Response header that has nginx, with the value ``no``, pass a stream on as it comes."""
READY: Final = "goq-internal-ready"
"""Response header, between nodes: the readiness count from before messages were looked for."""
OFFLINE: Final = "goq-internal-offline"
"""Response header, between nodes: why an answer without messages may lack some, URL-encoded."""
BYTES_MAX: Final = "goq-internal-bytes-max"
"""Request header, between nodes: the maximum size of the answer."""
MERGED_STREAM: Final = "goq-internal-merged-stream"
"""Request header, between nodes: the client's stream that a stream is to be a part of."""
HOLDER: Final = "goq-internal-holder"
"""Request header, between nodes: the id of a client's receive, by which its leases are returned."""
REOPENED: Final = "goq-internal-reopened"
"""Request header, between nodes: that this node had a part of the client's stream before."""
ALIVE: Final = "goq-internal-alive"
"""Request header, between nodes: that a stream's consumer has shown life at another node."""
REST: Final = "goq-internal-rest"
"""Request header, between nodes: the answer is added to others, so that no message may exceed its
maximum size, not even the first."""
DONE: Final = "goq-internal-done"
"""Request header, between nodes: the partitions in which an earlier try of a write is done."""
Document = dict[str, Any]
TopicOf = Callable[[Request, Sequence[str]], str | None]
"""Returns the topic whose leaders answer a request with path parameters; ``None`` for all nodes."""


class MergeContext(msgspec.Struct, frozen=True):
    """The parts of a request that a merge may need."""

    path: Sequence[str]
    """The parameters of the path."""
    query: Mapping[str, str]
    leaders: Callable[[str], Sequence[str | None]]
    """Returns the leader of each partition of a topic by node id, ``None`` where there is none."""


Merge = Callable[[Sequence[Document], MergeContext], Document]
"""Merges several answers into one."""


class ToPartitionLeader(msgspec.Struct, frozen=True):
    """The leader of one partition answers; ``find`` returns it, ``None`` if there is none.

    With ``needs_session`` it does so only while it cannot have been fenced. Without it an answer is
    right at a node that reaches no other, too: a part of a log, up to where it was.
    """

    find: Callable[[Request, Sequence[str]], tuple[str, int] | None]
    needs_session: bool = False


def topic_of_path(_request: Request, values: Sequence[str]) -> str | None:
    """Return the topic in the path."""
    return values[0] if values else None


class ToAllLeaders(msgspec.Struct, frozen=True):
    """All leaders of the topic's partitions answer, and ``merge`` makes one answer.

    The answer is for each partition that has a leader. With ``needs_all`` the request fails while
    one has none. Where the merge ``shows_offline`` partitions, one that its leader does not serve
    yet is shown as such. ``partition_of`` returns the partition of a request that concerns one
    only.
    """

    merge: Merge
    topic_of: TopicOf = topic_of_path
    needs_all: bool = False
    shows_offline: bool = False
    partition_of: Callable[[Request], int | None] | None = None


class LocalThenMerged(msgspec.Struct, frozen=True):
    """Any node carries the request out; the answer is then the merged view of all leaders.

    The view is that of ``path``, a function of the local answer, or of the request's own path.
    ``is_whole`` says whether all leaders have received the change.
    """

    merge: Merge
    path: Callable[[Document], str] | None = None
    is_whole: Callable[[Document], bool] = lambda _shown: True


class Sequential(msgspec.Struct, frozen=True):
    """The partition leaders answer one after another, each for one partition, in order.

    Each gets the rest of ``max_messages``, by default ``max_default``. ``sums`` are the fields to
    add up; ``counts`` is the one that ``max_messages`` bounds.
    """

    sums: Sequence[str]
    counts: str
    max_default: int
    topic_of: TopicOf


class CustomRouting(Enum):
    """Routes with a gateway function of their own."""

    RECEIVE = auto()
    SETTLE = auto()
    STREAM = auto()
    LIVE = auto()
    DELETE_GROUP = auto()
    CHANGE_METADATA = auto()
    """Any node carries the request out; all nodes that are up have followed it when it answers."""
    SHOW_METADATA = auto()
    """Any node answers, by all changes that were acknowledged before."""
    HEARTBEAT = auto()
    LEAVE = auto()


RoutingPolicy = (
    ToPartitionLeader | ToAllLeaders | LocalThenMerged | Sequential | CustomRouting | None
)


def encode_partitions(numbers: Iterable[int]) -> str:
    """Return partitions as the value of a header: each is a bit of a hexadecimal number."""
    return f"{sum(1 << number for number in numbers):x}"


def decode_partitions(text: str) -> frozenset[int]:
    """Return the partitions in a header of another node; none for another text."""
    try:
        bits = bin(int(text, 16))[:1:-1]
    except ValueError:
        return frozenset()
    return frozenset(number for number, bit in enumerate(bits) if bit == "1")


def partition_of_query(request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Return the topic in the path and the partition in the query."""
    number = request.query.get("partition", "")
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    return values[0], int(number)


def partition_of_message(_request: Request, values: Sequence[str]) -> tuple[str, int] | None:
    """Return the partition of the message whose id is in the path."""
    try:
        topic, partition, _ = MessageId.parse(values[0])
    except GoqError:
        return None
    return topic, partition
