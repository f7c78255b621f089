"""The node that all tests of a file share, and topics on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.node.running_node import RunningNode, running_node

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    """One node for all tests that neither stop nor damage it.

    It ends with its file: tests that patch limits or chance would reach the nodes of others.
    """
    with running_node() as running:
        yield running


@pytest.fixture
def topic(node: RunningNode) -> str:
    """A topic of the test's own, with three partitions."""
    name = f"orders-{next(_numbers)}"
    node.call("POST", "/v1/topics", {"name": name, "partitions": 3})
    return name
