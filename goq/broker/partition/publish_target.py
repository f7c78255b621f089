"""The interface to a partition for publishing: led by this node or by another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from goq.broker.log.pending_appends import Appended
from goq.broker.log.shared_frame import SharedBy
from goq.delivery.dedup.producer_table import ProducerTable
from goq.frame.view import FrameView
from goq.model import Acks, Message


class PublishTarget(Protocol):
    """Accepts frames for one partition."""

    def check_publish(self, frame_bytes: int) -> None:
        """Raise an error if a frame cannot be accepted now."""

    def publish(
        self, view: FrameView, client_id: str | None = None, *, acks: Acks = Acks.QUORUM
    ) -> asyncio.Future[Appended]:
        """Store a checked frame; the future completes when ``acks`` is satisfied."""

    def publish_message(
        self, message: Message, by: SharedBy, client_id: str | None = None
    ) -> asyncio.Future[Appended]:
        """Store a checked message, in one frame with others; raise if it cannot be accepted now."""

    async def producers(self, producer_id: int) -> ProducerTable:
        """Return a table with the partition's record of a producer, perhaps with others."""


TargetLookup = Callable[[str, int], PublishTarget]
"""Returns a partition of a topic that another node leads."""
