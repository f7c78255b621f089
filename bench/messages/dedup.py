"""Rows of messages with dedup ids, all of which are remembered."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator

from bench.harness import frames
from bench.harness.loader import Request, http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from bench.harness.topics import fresh_topic
from bench.messages.backlog import fill_small
from goq.frame.encoder import Columns, encode_frame
from goq.model import DEDUP_HASH_BYTES

IDS = 10_000_000
PARTITIONS = 6
_BATCH = 1000


def _requests(topic: str, partition: int, seed: int) -> Iterator[Request]:
    """Yield requests of messages with new ids, for ever."""
    values, draw = frames.values(_BATCH, 10), random.Random(seed)
    size = DEDUP_HASH_BYTES
    while True:
        drawn = draw.randbytes(size * _BATCH)
        ids = [drawn[at : at + size] for at in range(0, len(drawn), size)]
        body = partition.to_bytes(4, "little") + encode_frame(Columns(values, dedup_ids=ids))
        yield frames.request_head(topic, len(body)), body


def _remember(place: Place) -> tuple[float, float, float, float]:
    count = place.scaled(IDS)
    with GoqNode(place.folder / f"dedup-{secrets.token_hex(4)}") as node:
        plain, topic = fresh_topic(node), fresh_topic(node)
        plain_rate = count / fill_small(node, plain, count, batch=_BATCH)
        before_mb = node.rss_mb()
        callers = [_requests(topic, number, number + 1) for number in range(PARTITIONS)]
        rate = count / load(node.port, callers, count // _BATCH, http_answer_length)
        return node.rss_mb() - before_mb, rate, plain_rate, rate / plain_rate


_TEXT = f"{IDS // 1_000_000} million remembered dedup ids"
WORKS = [
    Work(
        [
            Row("dedup-rss", f"{_TEXT}: the node grows", "MB", 400, at_most=True),
            Row("dedup-publish", f"{_TEXT}: publish, batches of {_BATCH}, 10 B", "msg/s"),
            Row("dedup-plain", "the same without ids", "msg/s"),
            Row("dedup-ratio", "publish with ids to without", "of plain"),
        ],
        _remember,
    )
]
