"""Fixtures for tests of programs that use goq: a node and a client.

pytest finds them where goq is installed. Nothing of goq is imported before a test asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    """A client of the session's node; its schedules and topics are deleted after the test."""
    with isolated_client(goq_node) as client:
        yield client


@contextmanager
def isolated_client(node: Node) -> Iterator[Client]:
    """Open a client; at the end remove the schedules and topics that are new, dead letters too."""
    with node.client() as client:
        schedules, topics = _schedule_names(client), _topic_names(client)
        yield client
    with node.client() as client:
        for name in _schedule_names(client) - schedules:
            client.remove_schedule(name)
        # Twice: a dead letter may create its topic until the one that it died in is deleted.
        for _ in range(2):
            for name in _topic_names(client) - topics:
                client.delete_topic(name)


def _schedule_names(client: Client) -> set[str]:
    return {schedule.name for schedule in client.list_schedules()}


def _topic_names(client: Client) -> set[str]:
    return {topic.name for topic in client.list_topics() if not topic.name.startswith("__")}
