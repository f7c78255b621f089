"""A browser for the tests of a module: one that runs keeps others from running event loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api.console import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running
