"""Routes of restores into this node: begin one, and see how it went."""

from __future__ import annotations

from goq.access.rule import Verb
from goq.api.codec.messages import json_response
from goq.api.codec.request import flatten_settings, json_body
from goq.api.needs import OPERATE, check_dead_letter_target, check_ends, principal_of
from goq.api.route import Route
from goq.api.schemas.restores import RestoreBegunOut, RestoreOrderIn, RestoreOut, RestoreStatusOut
from goq.backup.node_restores import NodeRestores, RestoredTopic, TopicRestoreOrder
from goq.broker.runtime.single_job import JobOutcome
from goq.clock import Clock
from goq.config.topic import TopicSettings
from goq.errors import ShuttingDown
from goq.http.message import Request, Response
from goq.units import parse_time_us

_RESTORES = "/v1/restores"


class RestoreRoutes:
    """Begin and describe restores of topics into this node."""

    def __init__(self, restores: NodeRestores, clock: Clock) -> None:
        self._restores = restores
        self._clock = clock

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                _RESTORES,
                self.begin,
                "Begin to restore a topic of this node's backups under another name",
                body=RestoreOrderIn,
                is_body_audited=True,
                answer=RestoreBegunOut,
                status=202,
                errors=("conflict", "topic_exists"),
                needs=OPERATE,
            ),
            Route(
                "GET",
                _RESTORES,
                self.describe,
                "The restore under way, and the last one",
                answer=RestoreStatusOut,
                needs=OPERATE,
            ),
        ]

    def begin(self, request: Request) -> Response:
        """Begin a restore. The sender must be allowed to read the one and to make the other."""
        order = json_body(request, RestoreOrderIn)
        principal = principal_of(request)
        check_ends(principal, (Verb.READ,), ((order.topic, None),))
        check_ends(principal, (Verb.MANAGE,), ((order.new_name, None),))
        now_us = self._clock.wall_us()
        at_us = None if order.at is None else parse_time_us(order.at, now_us=now_us, field="at")

        def check(settings: TopicSettings) -> None:
            check_dead_letter_target(principal, order.new_name, settings.dead_letter_topic)

        written = flatten_settings(order.settings or {})
        check(TopicSettings().changed(written))
        wanted = TopicRestoreOrder(order.topic, order.new_name, order.backup, at_us, written, check)
        return json_response(RestoreBegunOut(self._restores.begin(wanted, order.place)), 202)

    def describe(self, _request: Request) -> Response:
        """Return the state of the restores."""
        job = self._restores.job
        found = None if job.last is None else _finished(job.last)
        return json_response(RestoreStatusOut(job.running, found))


def _finished(last: JobOutcome[RestoredTopic]) -> RestoreOut:
    if last.result is None:
        failure = last.failure or ShuttingDown("the node was stopped")
        return RestoreOut(number=last.number, failure=failure.detail, code=failure.code)
    return RestoreOut(number=last.number, **last.result._asdict())
