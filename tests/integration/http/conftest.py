from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias

import pytest
import uvloop

_EXPECTED = re.compile(
    r"request \S+: .*, answered (429|503) |\((none|background)\) held the event loop "
)
"""Refusals by a full server are always told, and tested by their answers. A busy machine may hold
the loop while large buffers are copied."""
Run: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function in each of the event loops that the server supports."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def runner(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=factory) as event_loop:
            event_loop.run(scenario())

    return runner


@pytest.fixture(autouse=True)
def silent_log(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that leaves a warning in the log, unless it takes ``caplog`` to look itself."""
    yield
    if "caplog" not in request.node.function.__code__.co_varnames:
        told = [
            record.getMessage()
            for record in caplog.get_records("call")
            if record.levelname != "DEBUG"
        ]
        assert [text for text in told if not _EXPECTED.match(text)] == []
