"""The log of failed requests: each answer of 500 and above, and of 429, with an id.

The answer carries the id in ``Goq-Request-Id``. Failures of one kind on one route are logged once
in ten seconds, with the number of those left out; a bug is always logged.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from typing import Final

from goq.errors import GoqError, ShuttingDown
from goq.http.message import Request, Response
from goq.log_throttle import LogThrottle

REQUEST_ID: Final = "Goq-Request-Id"
_PERIOD_S: Final = 10.0
_log: Final = logging.getLogger("goq.http")


class FailureLog:
    """Logs failures of a node's requests."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(3)
        self._numbers = itertools.count(1)
        self._throttle = LogThrottle(_PERIOD_S)

    def next_id(self) -> str:
        """Return the id of a failed request."""
        return f"{self._prefix}-{next(self._numbers)}"

    def note(
        self, request: Request | None, route: str, error: GoqError, response: Response
    ) -> None:
        """Log a failure that the node or its load caused; other failures are the client's.

        The answers of a node that stops are no failures.
        """
        if isinstance(error, ShuttingDown) or (response.status < 500 and response.status != 429):
            return
        request_id = response.headers[REQUEST_ID] = self.next_id()
        left_out = self._throttle.admit((route, error.code), time.monotonic())
        if left_out is None:
            return
        _log.warning(
            "request %s: %s from %s, answered %d %s: %s%s",
            request_id,
            route,
            "an unknown peer" if request is None else request.peer,
            response.status,
            error.code,
            error.detail,
            f" ({left_out} more before)" if left_out else "",
        )
