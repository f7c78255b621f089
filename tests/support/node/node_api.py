"""Requests to a node over HTTP, each on a connection of its own."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.api.secret_watch import WATCH

LEADERSHIP_S_MAX = 60.0


class Answer(NamedTuple):
    """A response, whole; ``headers`` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class NodeApi(ABC):
    """The requests to a node, in this process or in another; with ``tls`` over HTTPS."""

    tls: ssl.SSLContext | None = None

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]:
        """Host and port of the node."""

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> Answer:
        """Send one request; a body other than bytes is sent as JSON. Raises ``OSError``."""
        sent = dict(headers or {})
        secret = WATCH.note_request(sent)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = (
            http.client.HTTPConnection(*self.address, timeout=timeout_s)
            if self.tls is None
            else http.client.HTTPSConnection(*self.address, timeout=timeout_s, context=self.tls)
        )
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
            WATCH.check_answer(secret, found, answer.body)
            return answer
        except http.client.HTTPException as error:
            raise ConnectionError(f"no answer: {error!r}") from error
        finally:
            connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, again while leaders move in a cluster, as a client does.

        A refusal with 421 or 503 has done nothing: an unknown outcome is 504.
        """
        until_s = time.monotonic() + LEADERSHIP_S_MAX
        while _may_move(answer := self.request(method, path, body, headers)):
            assert time.monotonic() < until_s, answer
            time.sleep(0.05)
        return answer

    def call(self, method: str, path: str, body: object = None) -> Any:
        """:meth:`ask` what must succeed; return its JSON, None for an empty answer."""
        answer = self.ask(method, path, body)
        assert 200 <= answer.status < 300, answer
        return answer.json if answer.body else None


def _may_move(answer: Answer) -> bool:
    """Whether a node of a cluster may answer otherwise once it knows who leads."""
    return answer.status == 421 or (answer.status == 503 and "goq-cluster" in answer.headers)
