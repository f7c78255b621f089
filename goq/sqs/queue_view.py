"""A topic as a queue: what sends and receives read of its attributes."""

from __future__ import annotations

from typing import Final

from goq.broker.topic.topic import Topic
from goq.sqs.attributes import CONTENT_DEDUP, DELAY, FIFO_SUFFIX, SCOPE, SIZE, WAIT, read_record
from goq.sqs.protocol.errors import missing_parameter, queue_missing

_NAME_CHARS_MAX: Final = 300


class QueueView:
    """A topic as a queue."""

    __slots__ = ("_record", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._record = read_record(topic.settings.sqs)

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the order of each message group."""
        return self.topic.name.endswith(FIFO_SUFFIX)

    def delay_ms(self, now_ms: int) -> int:
        """Return the delay of a message that has none of its own.

        In a FIFO queue it overtakes none that was sent before with a longer one.
        """
        return max(1000 * self._record.number(DELAY, 0), self._record.delayed_until_ms - now_ms)

    @property
    def wait_s(self) -> int:
        """The wait of a receive that says none."""
        return self._record.number(WAIT, 0)

    def size_max(self, default: int) -> int:
        """Return the maximum size of a message."""
        return self._record.number(SIZE, default)

    @property
    def has_content_dedup(self) -> bool:
        """Whether the body is the deduplication id of a message that has none."""
        return self._record.attributes.get(CONTENT_DEDUP) == "true"

    @property
    def has_group_dedup(self) -> bool:
        """Whether each message group has deduplication ids of its own."""
        return self._record.attributes.get(SCOPE) == "messageGroup"


def name_of_url(url: str | None) -> str:
    """Return the name of a queue from its URL, whatever its host. Raises ``SqsError``."""
    if not url:
        raise missing_parameter("QueueUrl")
    name = url.rstrip("/").rpartition("/")[2]
    if not name or len(name) > _NAME_CHARS_MAX:
        raise queue_missing()
    return name
