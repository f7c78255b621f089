"""When a following export writes files of a topic."""

from __future__ import annotations

from goq.pipeline.export.plan import ExportGate


def test_without_a_minimum_a_topic_is_always_due() -> None:
    assert ExportGate().is_due("t", 0, 0.0)


def test_a_topic_is_due_with_enough_rows_at_once() -> None:
    gate = ExportGate(10, 60)
    assert not gate.is_due("t", 9, 0.0)
    assert gate.is_due("t", 10, 0.0)


def test_fewer_rows_are_due_after_the_longest_wait_from_the_first_on() -> None:
    gate = ExportGate(10, 60)
    assert not gate.is_due("t", 0, 0.0)
    assert not gate.is_due("t", 1, 100.0)
    assert not gate.is_due("t", 2, 159.9)
    assert gate.is_due("t", 2, 160.0)
    assert not gate.is_due("t", 1, 161.0)
    assert not gate.is_due("t", 1, 220.0)
    assert gate.is_due("t", 1, 221.0)


def test_topics_wait_each_for_itself() -> None:
    gate = ExportGate(10, 60)
    assert not gate.is_due("t", 1, 0.0)
    assert not gate.is_due("u", 1, 30.0)
    assert gate.is_due("t", 1, 60.0)
    assert not gate.is_due("u", 1, 60.0)


def test_without_rows_no_topic_is_due_however_long_it_waits() -> None:
    assert not ExportGate(10, 0).is_due("t", 0, 1e9)
    assert ExportGate(10, 0).is_due("t", 1, 0.0)
