"""The partitions that an answer of one node is for.

A node answers from the partitions that it has. While leadership moves, a partition has left the old
leader and is not open at the new one, and for a moment no node has it, or two say that they do. So
a node names with its part of an answer the partitions that it had from the beginning of the request
to its end, and the gateway takes the parts for a whole only if they are for all partitions. A write
that is repeated for the others names those that are done. All of it travels in headers between
nodes; a node of an earlier version names none, and repeats what is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from goq.api.router import Router
from goq.api.routing_policy import decode_partitions, encode_partitions
from goq.errors import PartitionOffline
from goq.http.message import Request, Response

COVERAGE_OF: Final = "goq-internal-coverage-of"
"""Request header, between nodes: the topic whose partitions the answer is to name."""
COVERED: Final = "goq-internal-covered"
"""Response header, between nodes: those partitions."""

HeldPartitions = Callable[[str], Mapping[int, object]]
"""Returns the partitions of a topic that this node has, open or offline, by number.

None while this node may have been fenced: then others may lead them, and it does not know.
A partition that leaves the node and comes back is another object.
"""


class LocalAnswers:
    """This node's own answers, which name their partitions if the request asks for that."""

    def __init__(self, router: Router, held: HeldPartitions) -> None:
        self.held = held
        self._router = router

    def answer(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer of this node's partitions, or an awaitable of it."""
        topic = request.headers.get(COVERAGE_OF)
        if topic is None:
            return self._router.handle(request)
        before = self.held(topic)
        answer = self._router.handle(request)
        if isinstance(answer, Response):
            return _named(answer, before)
        return self._named_later(answer, topic, before)

    def still_held(self, topic: str, before: Mapping[int, object]) -> Collection[int]:
        """Return the partitions that this node has had since ``before``."""
        now = self.held(topic)
        return {number for number, one in before.items() if now.get(number) is one}

    async def _named_later(
        self, answer: Awaitable[Response], topic: str, before: Mapping[int, object]
    ) -> Response:
        response = await answer
        return _named(response, self.still_held(topic, before))


def _named(response: Response, numbers: Iterable[int]) -> Response:
    response.headers[COVERED] = encode_partitions(numbers)
    return response


def covered_by(response: Response) -> frozenset[int] | None:
    """Return the partitions that an answer names; None if it is of an earlier version."""
    text = response.headers.get(COVERED)
    return None if text is None else decode_partitions(text)


def led_partitions(leaders: Sequence[str | None]) -> frozenset[int]:
    """Return the partitions that have a leader."""
    return frozenset(number for number, leader in enumerate(leaders) if leader is not None)


def partition_moving(topic: str, number: int) -> PartitionOffline:
    """Return the error for a partition whose leader has not opened it yet."""
    return PartitionOffline(
        f"the leader of partition {number} of {topic} changes, and the new one does not serve it"
        " yet; goq cluster status says more",
        retry_after_ms=1000,
    )
