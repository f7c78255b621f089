from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.node.fixtures import node, topic

__all__ = ["node", "topic"]


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failures = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR
        and not record.getMessage().startswith("damaged: ")  # of files that a test damages
    ]
    assert not failures
