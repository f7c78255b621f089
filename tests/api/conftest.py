from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest
from support.running_node import RunningNode, running_node

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node() -> Iterator[RunningNode]:
    """One node for all tests that neither stop nor damage it."""
    with running_node() as running:
        yield running


@pytest.fixture
def topic(node: RunningNode) -> str:
    """A topic of the test's own, with three partitions."""
    name = f"orders-{next(_numbers)}"
    node.call("POST", "/v1/topics", {"name": name, "partitions": 3})
    return name


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failures = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
    ]
    assert not failures
