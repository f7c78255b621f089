"""Creation, pause, resumption and removal of schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from goq import limits
from goq.errors import Conflict, InvalidInput, NotFound, ScheduleExists
from goq.model import AUDIT_TOPIC, check_name
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun
from goq.schedules.timetable import check_cron, check_interval

_ATTEMPTS: Final = 5


class ScheduleStore(Protocol):
    """The store of schedules; a change is durable on return, in a cluster committed."""

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name: another object after each change."""
        ...

    async def put_schedule(self, record: ScheduleRecord) -> None:
        """Insert or replace a schedule; raise ``Conflict`` if it was changed meanwhile."""
        ...

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Raises ``NotFound``."""
        ...

    async def record_runs(self, runs: Mapping[str, ScheduleRun]) -> None:
        """Record the times that schedules have published for."""
        ...


class ScheduleManager:
    """Changes the schedules of a store; ``now_ms`` is the clock.

    ``on_change`` is called after each change.
    """

    def __init__(
        self,
        store: ScheduleStore,
        now_ms: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self.on_change = on_change

    @property
    def all(self) -> list[ScheduleRecord]:
        """All schedules, by name."""
        return [record for _, record in sorted(self._store.schedules.items())]

    def find(self, name: str) -> ScheduleRecord:
        """Return a schedule; raise ``NotFound``."""
        found = self._store.schedules.get(name)
        if found is None:
            raise NotFound(f"there is no schedule {name[:200]!r}; goq schedule list shows all")
        return found

    async def create(
        self,
        name: str,
        topic: str,
        messages: str,
        *,
        cron: str = "",
        tz: str = "UTC",
        every_ms: int = 0,
        principal: str,
    ) -> ScheduleRecord:
        """Create a schedule; one that does the same already is returned as it is.

        Raises ``InvalidInput``, and ``ScheduleExists`` if another one has the name.
        """
        now_ms = self._now_ms()
        check_name(name, "schedule", field="name")
        check_name(topic, "topic", field="topic")
        if topic == AUDIT_TOPIC:
            raise InvalidInput(f"only goq itself publishes to {AUDIT_TOPIC}", field="topic")
        if bool(cron) == bool(every_ms):
            raise InvalidInput("a schedule has either a cron line or an interval", field="cron")
        if len(messages.encode()) > limits.SCHEDULE_BYTES_MAX:
            raise InvalidInput(
                f"the messages of a schedule are at most {limits.SCHEDULE_BYTES_MAX} bytes of JSON",
                field="messages",
            )
        if cron:
            check_cron(cron, tz, now_ms)
        else:
            check_interval(every_ms)
        record = ScheduleRecord(
            name, topic, messages, cron, tz if cron else "", every_ms, principal, now_ms, now_ms
        )
        known = self._store.schedules.get(name)
        if known is not None:
            if known.does_the_same_as(record):
                return known
            raise ScheduleExists(
                f"there is another schedule {name}; remove it first, or take another name",
                field="name",
            )
        await self._store.put_schedule(record)
        self.on_change()
        return record

    async def pause(self, name: str) -> ScheduleRecord:
        """Pause a schedule: it publishes nothing until it is resumed. Raises ``NotFound``."""
        now_ms = self._now_ms()
        return await self._change(
            name, lambda known: known if known.paused_ms else replace(known, paused_ms=now_ms)
        )

    async def resume(self, name: str) -> ScheduleRecord:
        """Resume a paused schedule, from its next time on. Raises ``NotFound``."""
        now_ms = self._now_ms()
        return await self._change(
            name,
            lambda known: (
                replace(known, paused_ms=0, resumed_ms=max(now_ms, known.resumed_ms))
                if known.paused_ms
                else known
            ),
        )

    async def remove(self, name: str) -> None:
        """Remove a schedule. Raises ``NotFound``."""
        self.find(name)
        await self._store.delete_schedule(name)
        self.on_change()

    async def _change(
        self, name: str, change: Callable[[ScheduleRecord], ScheduleRecord]
    ) -> ScheduleRecord:
        for attempt in range(_ATTEMPTS):
            known = self.find(name)
            changed = change(known)
            if changed is known:
                return known
            changed = replace(changed, version=known.version + 1)
            try:
                await self._store.put_schedule(changed)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            self.on_change()
            return changed
        raise AssertionError
