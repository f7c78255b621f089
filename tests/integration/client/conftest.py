from __future__ import annotations

from collections.abc import Iterator

import pytest

from goq.client import Client
from tests.support.client.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.url, retries="5s") as q:
        yield q
