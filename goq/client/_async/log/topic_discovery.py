"""The topics of a selection that exist now, asked for again and again."""

from __future__ import annotations

import time
from typing import Final

from goq.client._async.http import Http
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicsAnswer, read_answer
from goq.client.protocol.topic_selection import TopicSelection
from goq.errors import TopicNotFound

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 10.0
_PAUSES_PER_ANSWER: Final = 50
"""A node with many topics answers slowly: it is asked for at most 2 % of the time.

An answer also takes long because no node is there, or the machine is busy, which passes. So the
pause has a bound.
"""


class TopicDiscovery:
    """Tells each topic of a selection once, when it is there."""

    def __init__(self, http: Http, topics: TopicSelection) -> None:
        self._http = http
        self._topics = topics
        self._told: set[str] = set()
        self.pause_s = _PAUSE_S_MIN

    async def new_topics(self) -> list[str]:
        """Return the topics that were not told yet, by name. Raises ``InvalidInput`` for too many.

        ``pause_s`` is then how long to wait before the next call.
        """
        began_s = time.monotonic()
        answer = await self._http.call("GET", routes.TOPICS)
        existing = [topic.name for topic in read_answer(TopicsAnswer, answer).topics]
        pause_s = _PAUSES_PER_ANSWER * (time.monotonic() - began_s)
        self.pause_s = min(max(_PAUSE_S_MIN, pause_s), _PAUSE_S_MAX)
        found = self._topics.chosen(existing)
        new = sorted(set(found) - self._told)
        self._told.update(new)
        return new

    def missing(self) -> TopicNotFound | None:
        """Return an error for names that were not told yet, or if no topic was; else None."""
        return self._topics.missing(self._told)

    def forget(self, topic: str) -> None:
        """Tell a topic anew if it comes back: it was deleted."""
        self._told.discard(topic)
