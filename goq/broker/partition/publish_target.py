"""A partition as those see it who publish to it, wherever it is led."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from goq.broker.log.group_commit import Appended
from goq.delivery.dedup.producer_table import ProducerTable
from goq.frame.view import FrameView


class PublishTarget(Protocol):
    """A partition that this node leads, or one that another node does."""

    def check_publish(self, frame_bytes: int) -> None:
        """Raise why a frame cannot be taken now."""

    def publish(
        self, view: FrameView, client_id: str | None = None, *, on_leader: bool = False
    ) -> asyncio.Future[Appended]:
        """Have a checked frame stored; the future is done when it is as safe as asked for."""

    async def producers(self, producer_id: int) -> ProducerTable:
        """Return a table that has what the partition knows of a producer, and perhaps others."""


TargetLookup = Callable[[str, int], PublishTarget]
"""Returns a partition of a topic that another node leads."""
