"""Fixtures for tests of programs that use goq: a node and a client.

pytest finds them where goq is installed. Nothing of goq is imported before a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from goq.client import Client
    from goq.embedded import Node


@pytest.fixture(scope="session")
def goq_node() -> Iterator[Node]:
    """A node of the session, on a temporary folder that is never synced."""
    from goq.embedded import Node

    with Node.temporary() as node:
        yield node


@pytest.fixture
def goq_client(goq_node: Node) -> Iterator[Client]:
    """A client of the session's node; its topics are deleted after the test."""
    with goq_node.client() as client:
        before = {topic.name for topic in client.list_topics()}
        yield client
    with goq_node.client() as client:
        for topic in client.list_topics():
            if topic.name not in before and not topic.name.startswith("__"):
                client.delete_topic(topic.name)
