"""Publishes the messages of schedules, by the node's own handler.

A publish is checked and routed as one of the token that created the schedule: if that token may not
publish any more, or is not valid, the schedule publishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from goq.access.rule import Principal
from goq.access.token_table import TokenTable
from goq.api.codec.problem import Problem
from goq.errors import BY_CODE, GoqError, NotAllowed, NotAuthenticated
from goq.http.message import Handler, Request, Response
from goq.schedules.schedule_record import ScheduleRecord
from goq.units import format_time_us

SCHEDULE_HEADER = "goq-schedule"
"""The header with the name of the schedule that published a message."""
DUE_HEADER = "goq-schedule-due"
"""The header with the time that the message was due."""


class SchedulePublisher:
    """Publishes through ``handler``; without ``tokens`` the node asks for none."""

    def __init__(self, handler: Callable[[], Handler], tokens: TokenTable | None) -> None:
        self._handler = handler
        self._tokens = tokens

    async def publish(self, record: ScheduleRecord, due_ms: int) -> None:
        """Publish a schedule's messages for a due time, once however often it is called.

        Raises ``GoqError``.
        """
        body = msgspec.json.encode({"messages": _messages(record, due_ms)})
        headers = {"content-type": "application/json"}
        path = f"/v1/topics/{record.topic}/messages"
        principal = self._principal(record)
        answer = self._handler()(Request("POST", path, "", headers, body, "", principal=principal))
        response = answer if isinstance(answer, Response) else await answer
        if response.status >= 400:
            assert isinstance(response.body, bytes)
            problem = msgspec.json.decode(response.body, type=Problem)
            error = BY_CODE.get(problem.code, GoqError)
            raise error(problem.detail, retry_after_ms=problem.retry_after_ms)

    def _principal(self, record: ScheduleRecord) -> Principal | None:
        if self._tokens is None:
            return None
        try:
            return self._tokens.named(record.principal)
        except NotAuthenticated as error:
            raise NotAllowed(
                f"the token that created the schedule: {error.detail}; remove the schedule and"
                " create it again with a valid one"
            ) from None


def _messages(record: ScheduleRecord, due_ms: int) -> list[dict[str, Any]]:
    due = format_time_us(due_ms * 1000)
    messages: list[dict[str, Any]] = msgspec.json.decode(record.messages)
    return [
        {
            **message,
            "headers": {
                **message.get("headers", {}),
                SCHEDULE_HEADER: record.name,
                DUE_HEADER: due,
            },
            "dedup_id": f"goq-schedule/{record.name}/{due_ms}/{number}",
        }
        for number, message in enumerate(messages)
    ]
