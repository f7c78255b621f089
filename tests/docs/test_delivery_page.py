"""What docs/delivery.md says in numbers and draws, against the code."""

from __future__ import annotations

import re
import subprocess
import sys

from goq import limits
from goq.broker.partition.failure_policy import retry_policy
from goq.config.topic import TopicSettings
from goq.delivery.events.transitions import TRANSITIONS, MessageState
from goq.delivery.queues.weighted_shares import LaneShares
from tests.support.paths import REPOSITORY

PAGE = (REPOSITORY / "docs" / "delivery.md").read_text()


def test_the_diagram_is_the_one_of_the_table() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "delivery_doc.py"), "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_state_and_every_event_is_on_the_page() -> None:
    for state in MessageState:
        assert re.search(rf"^\| {state} \|", PAGE, re.MULTILINE)
    for row in TRANSITIONS:
        assert row.why in PAGE
        assert row.event is None or f"`{row.event.__name__}`" in PAGE


def test_the_waits_before_a_retry_are_those_of_the_default_settings() -> None:
    policy = retry_policy(TopicSettings())
    rows = re.findall(r"^\| (\d) \| (\d) s \| ([\d.]+) to ([\d.]+) s \|$", PAGE, re.MULTILINE)
    assert [int(attempt) for attempt, *_ in rows] == [1, 2, 3]
    for attempt, doubled_s, least_s, most_s in rows:
        assert not policy.is_last(int(attempt))
        assert policy._replace(jitter=0).wait_ms(int(attempt), 0) == 1000 * int(doubled_s)
        assert policy.wait_ms(int(attempt), 0) == round(1000 * float(least_s))
        assert policy.wait_ms(int(attempt), 1) == round(1000 * float(most_s))
    assert policy.is_last(4)


def test_lanes_with_weights_of_8_3_and_1_get_as_many_of_twelve_messages() -> None:
    assert "in each cycle of 12 messages the lanes get 8, 3 and 1" in PAGE
    shares, got = LaneShares((8, 3, 1)), [0, 0, 0]
    for _ in range(24):
        lane, _share = shares.choose(0b111)
        shares.charge(lane, 1)
        got[lane] += 1
    assert got == [16, 6, 2]


def test_the_bounds_on_the_page_are_those_of_the_limits() -> None:
    assert limits.MARKS_PER_PARTITION_MAX == limits.HELD_MESSAGES_MAX == 100_000
    assert limits.VISIBILITY_MS_MAX == 12 * 3_600_000
    assert limits.NACK_DELAY_MS_MAX == 365 * 86_400_000
    assert (limits.REDRIVES_MAX, limits.PRODUCER_BATCHES_REMEMBERED) == (10, 5)
    assert limits.PRODUCERS_PER_PARTITION_MAX == 10_000
    assert limits.TENANTS_PER_PARTITION_MAX == 1_000_000
