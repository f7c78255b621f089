from __future__ import annotations

import logging

import pytest

from goq.api.codec.problem import problem_response
from goq.errors import GoqError, StorageFull, TooManyRequests, TopicNotFound
from goq.http.failure_log import REQUEST_ID, FailureLog
from goq.http.message import Request, Response


def note(failures: FailureLog, error: GoqError, route: str = "POST /a") -> Response:
    response = problem_response(error)
    failures.note(Request("POST", "/a", peer="127.0.0.1:5"), route, error, response)
    return response


def test_a_failure_of_the_node_is_logged_with_its_route_and_the_id_of_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = note(FailureLog(), StorageFull("the disk is full"))
    [record] = caplog.records
    assert record.getMessage() == (
        f"request {response.headers[REQUEST_ID]}: POST /a from 127.0.0.1:5, answered 507"
        " storage_full: the disk is full"
    )
    assert record.levelno == logging.WARNING


def test_a_limit_is_logged_and_a_mistake_of_the_client_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLog()
    assert REQUEST_ID in note(failures, TooManyRequests("full")).headers
    assert REQUEST_ID not in note(failures, TopicNotFound("no")).headers
    assert len(caplog.records) == 1


def test_failures_of_one_kind_are_logged_once_in_a_while_and_each_has_an_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLog()
    answers = [note(failures, StorageFull("full")) for _ in range(100)]
    assert len({answer.headers[REQUEST_ID] for answer in answers}) == 100
    note(failures, StorageFull("full"), "POST /b")
    note(failures, TooManyRequests("full"))
    assert len(caplog.records) == 3
