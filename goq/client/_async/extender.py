"""Keeping leases alive while their messages are worked on, where that was asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from goq.client._async.runtime import Monitor, Worker
from goq.client._async.settlement import (
    AsyncReceivedMessage,
    Settler,
    by_group,
    extend_details,
    receipts_of,
)
from goq.errors import GoqError
from goq.model import Receipt

_PERIOD_MS_MIN, _PERIOD_MS_MAX = 1000, 10_000


class Extender:
    """Renews the leases of the messages it watches, three times within their visibility.

    A message is watched until it is settled, its lease is found lost, or the extender stops.
    """

    def __init__(self, settler: Settler, visibility_ms: int | None) -> None:
        self._settler = settler
        self._visibility_ms = visibility_ms
        self._watched: list[AsyncReceivedMessage] = []
        self._period_s = 0.0
        self._monitor = Monitor()
        self._worker: Worker | None = None
        self._stopped = False

    def watch(self, messages: Sequence[AsyncReceivedMessage]) -> None:
        """Watch messages as they were received."""
        with self._monitor:
            self._watched.extend(messages)
        if self._worker is None and messages:
            self._period_s = self._period_of(messages[0]) / 1000
            self._worker = Worker(self._work)

    async def stop(self) -> None:
        """Renew nothing more."""
        with self._monitor:
            self._stopped = True
            self._monitor.notify_all()
        if self._worker is not None:
            await self._worker.join()

    async def renew(self) -> None:
        """Renew what is not settled yet; forget the rest."""
        with self._monitor:
            self._watched = [message for message in self._watched if not message.settled]
            watched = list(self._watched)
        asked = {}
        if self._visibility_ms is not None:
            asked = extend_details(self._visibility_ms / 1000)
        for topic, group, members in by_group(watched):
            try:
                settled = await self._settler.settle(
                    "extend", topic, group, receipts_of(members), **asked
                )
            except GoqError:
                continue  # the next period tries again, while the lease lasts
            lost = [Receipt.parse(failed.receipt) for failed in settled.failed]
            self._forget([message for message in members if _is_in(message.claim(), lost)])

    async def _work(self) -> None:
        while True:
            renew_at_s = time.monotonic() + self._period_s
            with self._monitor:
                while not self._stopped and (left_s := renew_at_s - time.monotonic()) > 0:
                    await self._monitor.wait(left_s)
                if self._stopped:
                    return
            await self.renew()

    def _forget(self, messages: Sequence[AsyncReceivedMessage]) -> None:
        gone = set(map(id, messages))
        with self._monitor:
            self._watched = [message for message in self._watched if id(message) not in gone]

    def _period_of(self, message: AsyncReceivedMessage) -> float:
        if self._visibility_ms is not None:
            return max(self._visibility_ms / 3, 100)
        lasts_ms = message.lease_until / 1000 - time.time() * 1000
        return min(max(lasts_ms / 3, _PERIOD_MS_MIN), _PERIOD_MS_MAX)


def _is_in(claim: Receipt, runs: Sequence[Receipt]) -> bool:
    return any(run[:2] == claim[:2] and run.start <= claim.start < run.end for run in runs)
