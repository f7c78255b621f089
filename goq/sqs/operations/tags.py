"""Operations on the tags of queues, which the queue's record holds."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from goq.sqs.attributes import QueueRecord, read_record
from goq.sqs.node_calls import SqsCall
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.protocol.bounds import TAG_KEY_CHARS_MAX, TAG_VALUE_CHARS_MAX, TAGS_MAX
from goq.sqs.protocol.errors import invalid_parameter, missing_parameter

_AWS_TAG: Final = "aws:"


class TagOperations:
    """Lists, sets and removes the tags of queues."""

    def __init__(self, queues: QueueDirectory) -> None:
        self._queues = queues

    async def list_tags(self, call: SqsCall) -> dict[str, Any]:
        """ListQueueTags."""
        queue = await self._queues.locate(call, call.shape.queue_url)
        tags = read_record(queue.topic.settings.sqs).tags
        return {"Tags": tags} if tags else {}

    async def tag(self, call: SqsCall) -> None:
        """TagQueue."""
        if not call.shape.tags:
            raise missing_parameter("Tags")
        queue = await self._queues.locate(call, call.shape.queue_url)

        def changed(record: QueueRecord) -> QueueRecord:
            tags = checked_tags({**record.tags, **call.shape.tags})
            return msgspec.structs.replace(record, tags=tags)

        await self._queues.change(call, queue, changed)

    async def untag(self, call: SqsCall) -> None:
        """UntagQueue."""
        if not call.shape.keys:
            raise missing_parameter("TagKeys")
        queue = await self._queues.locate(call, call.shape.queue_url)

        def changed(record: QueueRecord) -> QueueRecord:
            tags = {key: value for key, value in record.tags.items() if key not in call.shape.keys}
            return msgspec.structs.replace(record, tags=tags)

        await self._queues.change(call, queue, changed)


def checked_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of a queue; raise ``SqsError`` for too many, reserved or long ones."""
    if len(tags) > TAGS_MAX:
        raise invalid_parameter(f"Too many tags: a queue has at most {TAGS_MAX}.")
    for key, value in tags.items():
        if key.lower().startswith(_AWS_TAG):
            raise invalid_parameter(f"Tag keys that begin with {_AWS_TAG} are reserved.")
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or len(value) > TAG_VALUE_CHARS_MAX:
            raise invalid_parameter(
                f"A tag has a key of 1 to {TAG_KEY_CHARS_MAX} characters and a value of at most"
                f" {TAG_VALUE_CHARS_MAX}."
            )
    return tags
