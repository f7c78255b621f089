"""The node's clock, as a topic's description tells it.

Append times are by the clock of a node. So times that count from now are, too: this machine's clock
may be ahead, and a read from now on would then leave out messages.
"""

from __future__ import annotations

import time

from goq.client._async.http import Http
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.units import parse_time_us


async def topic_time_us(http: Http, topic: str) -> int:
    """Ask a node for its time, in microseconds. Raises ``TopicNotFound``."""
    return answer_time_us(read_answer(TopicAnswer, await http.call("GET", routes.topic(topic))))


def answer_time_us(found: TopicAnswer) -> int:
    """Return the node's time in an answer; this machine's if a node does not tell."""
    return time.time_ns() // 1000 if found.time is None else parse_time_us(found.time, now_us=0)
