from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.broker.topic.admin.capacity import process_memory_bytes, state_bytes_max


def test_a_container_has_the_memory_of_the_smallest_group_around_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/pods/one\n")
    inner = tmp_path / "cgroups" / "pods" / "one"
    inner.mkdir(parents=True)
    machine_bytes = process_memory_bytes(own, tmp_path / "cgroups")
    assert machine_bytes > limits.MIB
    (inner / "memory.max").write_text("max\n")
    assert process_memory_bytes(own, tmp_path / "cgroups") == machine_bytes
    (inner.parent / "memory.max").write_text(f"{limits.MIB}\n")
    assert process_memory_bytes(own, tmp_path / "cgroups") == limits.MIB
    (inner / "memory.max").write_text("4096\n")
    assert process_memory_bytes(own, tmp_path / "cgroups") == 4096


def test_without_control_groups_the_machines_memory_counts(tmp_path: Path) -> None:
    assert process_memory_bytes(tmp_path / "none", tmp_path) >= limits.MIB


def test_partitions_and_groups_take_at_most_half_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STATE_BYTES_MAX", 2**60)
    assert state_bytes_max() == process_memory_bytes() // 2
    monkeypatch.setattr(limits, "STATE_BYTES_MAX", 4096)
    assert state_bytes_max() == 4096
