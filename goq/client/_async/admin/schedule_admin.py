"""The calls about schedules: messages that the node publishes periodically."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence

from goq.client import results
from goq.client._async.http import Http
from goq.client.arguments import Duration, as_dict, check_list, wire_duration
from goq.client.protocol import routes
from goq.errors import InvalidInput


class AsyncScheduleAdmin:
    """The calls about schedules; changes need the rule ``manage`` on the schedule's topic."""

    _http: Http

    async def create_schedule(
        self,
        name: str,
        topic: str,
        values: str | bytes | Sequence[str | bytes],
        *,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: str | int | None = None,
        ttl: Duration | None = None,
        tenant: str | None = None,
    ) -> results.schedule.ScheduleDescription:
        """Have the node publish ``values`` to a topic at each time of a cron line, or ``every`` so
        often; see docs/schedule.md.

        ``cron`` is a line as ``0 9 * * MON-FRI``, in the time zone ``tz``, by default UTC. The
        other arguments are those of ``publish``, for each message. A schedule that does the same
        already is returned. Raises ``InvalidInput``, and ``ScheduleExists`` if another has it.
        """
        message: dict[str, object] = {"key": key, "priority": priority, "tenant": tenant}
        message["headers"] = None if headers is None else as_dict(headers, "headers")
        message["ttl"] = None if ttl is None else wire_duration(ttl, "ttl")
        given = {field: value for field, value in message.items() if value is not None}
        several = [values] if isinstance(values, str | bytes) else values
        check_list(several, "values")
        body: dict[str, object] = {
            "topic": topic,
            "messages": [{**_value(value), **given} for value in several],
        }
        if every is not None:
            body["every"] = wire_duration(every, "every")
        body |= {field: text for field, text in (("cron", cron), ("tz", tz)) if text is not None}
        answer = await self._http.call("PUT", routes.schedule(name), body, repeatable=True)
        return results.schedule.decode_schedule(answer)

    async def list_schedules(self) -> tuple[results.schedule.ScheduleDescription, ...]:
        """Return all schedules by name."""
        return results.schedule.decode_schedules(await self._http.call("GET", routes.SCHEDULES))

    async def describe_schedule(self, name: str) -> results.schedule.ScheduleDescription:
        """Return a schedule. Raises ``NotFound``."""
        return results.schedule.decode_schedule(await self._http.call("GET", routes.schedule(name)))

    async def pause_schedule(self, name: str) -> results.schedule.ScheduleDescription:
        """Pause a schedule: it publishes nothing until it is resumed. Raises ``NotFound``."""
        target = f"{routes.schedule(name)}/pause"
        answer = await self._http.call("POST", target, repeatable=True)
        return results.schedule.decode_schedule(answer)

    async def resume_schedule(self, name: str) -> results.schedule.ScheduleDescription:
        """Resume a paused schedule, from its next time on. Raises ``NotFound``."""
        target = f"{routes.schedule(name)}/resume"
        answer = await self._http.call("POST", target, repeatable=True)
        return results.schedule.decode_schedule(answer)

    async def remove_schedule(self, name: str) -> None:
        """Remove a schedule. Raises ``NotFound``."""
        await self._http.call("DELETE", routes.schedule(name))


def _value(value: str | bytes) -> dict[str, object]:
    if isinstance(value, str):
        return {"value": value}
    if not isinstance(value, bytes):
        raise InvalidInput(f"a value is bytes or str, not {type(value).__name__}", field="values")
    return {"value_base64": b64encode(value).decode()}
