"""The trace of a message says what was done to it, in order, whatever was done around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.broker_harness import MemoryMetadata, broker_on, run
from support.trace_twin import TOPIC, TraceTwin, as_told

from goq import limits
from goq.broker.tracing import Tracing
from goq.clock import ManualClock

TURNS, STEPS = 3, 40
SETTINGS = {
    "delivery__max_attempts": 3,
    "delivery__backoff__initial": "1s",
    "delivery__backoff__jitter": 0,
    "delivery__ordering": "none",
}


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of events and blocks of their index that a few steps fill."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 6_000)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(limits, "SPANS_BLOCK_BYTES", 600)


async def check(twin: TraceTwin) -> None:
    tracing = Tracing(twin.broker)
    for message_id, expected in twin.steps.items():
        trace = await tracing.trace(message_id)
        own = [each for each in trace.steps if each.id == message_id]
        assert as_told(own) == expected, message_id
        assert not trace.incomplete
        for each in trace.copies:
            steps = [step for step in trace.steps if step.id == each.id]
            assert as_told(steps) == twin.steps[each.id], (message_id, each.id)
        reached = {step["to"] for step in expected if "to" in step}
        reached |= {step["origin"] for step in expected if "origin" in step}
        assert reached <= {each.id for each in trace.copies}
        delivered = [e for each in {step.id for step in trace.steps} for e in twin.steps[each]]
        assert trace.attempts == sum(
            {"DELIVERED": 1, "RETURNED": -1}.get(step["event"], 0) for step in delivered
        )


@pytest.mark.usefixtures("small_segments")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_the_trace_of_every_message_is_what_was_done(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    async def main(path: Path) -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        twin = TraceTwin(seed, clock)
        for turn in range(TURNS):
            async with broker_on(path, metadata=metadata, clock=clock, **SETTINGS) as broker:
                twin.bind(broker)
                if not turn:
                    await broker.create_topic(TOPIC, 1)
                for _ in range(STEPS):
                    await twin.act()
                await check(twin)

    run(main(tmp_path_factory.mktemp("life")))
