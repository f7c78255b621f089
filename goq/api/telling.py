"""What a member of a cluster tells a client library beside each answer.

``Goq-Cluster`` is the version of what all nodes agree on. A node of its own does not say it: so
its clients ask nothing about other nodes.

A consumer that asks each leader by itself says so (``Goq-Feed: leader``) and is told whether it
got messages of this node alone (``leader``) or of all (``all``): where each partition belongs to
one consumer of a group, one node must see to all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from goq.broker.broker import Broker
from goq.cluster.relaying import LOCAL
from goq.http.message import Handler, Request, Response

VERSION: Final = "Goq-Cluster"
FEED: Final = "Goq-Feed"
OF_ONE: Final = "leader"
OF_ALL: Final = "all"


class Telling:
    """Answers as ``handler`` does, and tells more."""

    def __init__(self, handler: Handler, broker: Broker, version: Callable[[], int]) -> None:
        self._handler = handler
        self._broker = broker
        self._version = version

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it."""
        feed = None
        if request.headers.get(FEED.lower()) == OF_ONE and LOCAL not in request.headers:
            feed = self._feed_of(request)
            if feed == OF_ONE:
                request.headers[LOCAL] = "true"
        answer = self._handler(request)
        if isinstance(answer, Response):
            return self._told(answer, feed)
        return self._awaited(answer, feed)

    async def _awaited(self, answer: Awaitable[Response], feed: str | None) -> Response:
        return self._told(await answer, feed)

    def _told(self, response: Response, feed: str | None) -> Response:
        if VERSION.lower() in response.headers:  # as another node told it
            del response.headers[VERSION.lower()]
        response.headers[VERSION] = str(self._version())
        if feed is not None:
            response.headers[FEED] = feed
        return response

    def _feed_of(self, request: Request) -> str:
        """Return whose messages to hand out."""
        parts = request.path.split("/")  # /v1/topics/{topic}/groups/{group}/receive
        topic = self._broker.topics.get(parts[3]) if len(parts) == 7 else None
        is_whole = topic is not None and topic.shares_partitions(parts[5])
        return OF_ALL if is_whole else OF_ONE
