from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client.sqs_client import sqs_client
from tests.support.node.running_node import RunningNode, running_node

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def node() -> Iterator[RunningNode]:
    """One node with the endpoint for all tests that neither stop nor damage it."""
    with running_node(sqs={"listen": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="session")
def url(node: RunningNode) -> str:
    assert node.node.sqs_url is not None
    return node.node.sqs_url


@pytest.fixture(scope="session")
def sqs(url: str) -> Iterator[Any]:
    """A boto3 client of the node."""
    with sqs_client(url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"queue-{next(_numbers)}"


@pytest.fixture
def queue(sqs: Any, name: str) -> str:
    """The URL of a standard queue of the test's own."""
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])


@pytest.fixture
def fifo(sqs: Any, name: str) -> str:
    """The URL of a FIFO queue of the test's own, with deduplication by content."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    created = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)
    return str(created["QueueUrl"])


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failures = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
    ]
    assert not failures
