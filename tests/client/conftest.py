from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_fake_node import FakeNode

from goq.client import Client


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.url, retries="5s") as q:
        yield q
