"""Messages as the outbox publishes them: in frames that only the node can mark as copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from goq.broker.log.shared_frame import frame_of
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.frame.encoder import NO_PRODUCER
from goq.frame.header import HEADER_BYTES, Attribute
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.node.running_node import RunningNode


async def publish_copies(topic: Topic, routed: Sequence[RoutedMessage]) -> None:
    """Publish messages to their partitions, one frame for each, as copies of the outbox."""
    chosen: dict[int, list[Message]] = {}
    for number, message in routed:
        assert number is not None
        chosen.setdefault(number, []).append(message)
    lane = topic.settings.default_lane
    frames = [
        (number, _as_copies(frame_of(messages, NO_PRODUCER, lane)))
        for number, messages in chosen.items()
    ]
    await topic.publisher.publish_frames(frames)


def put_copies(
    node: RunningNode, name: str, *values: str, headers: Mapping[str, str], partition: int = 0
) -> None:
    """Publish messages with the same headers to a topic of a node, as copies of the outbox."""
    pairs = tuple((header, text.encode()) for header, text in headers.items())
    routed = [RoutedMessage(partition, Message(each.encode(), headers=pairs)) for each in values]
    broker = node.node.broker
    assert broker is not None
    topic = broker.topics[name]
    node.on_loop(lambda: publish_copies(topic, routed))


def _as_copies(view: FrameView) -> FrameView:
    header = view.header._replace(attributes=view.header.attributes | Attribute.COPY)
    return FrameView.parse(header.pack() + bytes(view.buffer[HEADER_BYTES:]))
