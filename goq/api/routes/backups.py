"""Routes of backups: begin one, and see how it went."""

from __future__ import annotations

from goq.api.codec.messages import json_response
from goq.api.codec.request import json_body
from goq.api.needs import OPERATE
from goq.api.route import Route
from goq.api.schemas.backups import BackupBegunOut, BackupOrder, BackupOut, BackupStatusOut
from goq.backup.backup import BackupResult
from goq.backup.node_backups import NodeBackups
from goq.broker.runtime.single_job import JobOutcome
from goq.errors import ShuttingDown
from goq.http.message import Request, Response
from goq.units import format_time_us

_BACKUPS = "/v1/backups"


class BackupRoutes:
    """Begin and describe backups of this node."""

    def __init__(self, backups: NodeBackups) -> None:
        self._backups = backups

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                _BACKUPS,
                self.begin,
                "Begin a backup of this node to the folder that its configuration names",
                body=BackupOrder,
                is_body_audited=True,
                answer=BackupBegunOut,
                status=202,
                errors=("conflict",),
                needs=OPERATE,
            ),
            Route(
                "GET",
                _BACKUPS,
                self.describe,
                "The backup under way, and the last one",
                answer=BackupStatusOut,
                needs=OPERATE,
            ),
        ]

    def begin(self, request: Request) -> Response:
        """Begin a backup, unless one is under way."""
        order = json_body(request, BackupOrder)
        return json_response(BackupBegunOut(self._backups.begin(order.to)), 202)

    def describe(self, _request: Request) -> Response:
        """Return the state of the backups."""
        backups, newest_us = self._backups, self._backups.newest_us
        folder = backups.config.to
        return json_response(
            BackupStatusOut(
                None if folder is None else str(folder),
                backups.job.running,
                None if newest_us is None else format_time_us(newest_us),
                None if backups.job.last is None else _finished(backups.job.last),
            )
        )


def _finished(last: JobOutcome[BackupResult]) -> BackupOut:
    if last.result is None:
        failure = last.failure or ShuttingDown("the node was stopped")
        return BackupOut(number=last.number, failure=failure.detail, code=failure.code)
    return BackupOut(number=last.number, **last.result._asdict())
