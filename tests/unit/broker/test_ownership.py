"""Ownership: no package but goq.broker.partition reads a partition's state or logs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import goq

_ROOT = Path(goq.__file__).parent
_OWNER = _ROOT / "broker" / "partition"
_INSIDE = frozenset({"state", "dispatch", "messages", "events"})
_PARTITION = re.compile(
    r"(?:^|[._])partitions?$"  # partition, self._partition, opened_partition
    r"|(?:^|\.)_?partitions?\[.*\]$|\.partitions\.get\(.*\)$|(?:^|\.)_?partition(?:_of)?\(.*\)$"
    r"|^p$"
)


def _reads(source: str) -> Iterator[tuple[int, str]]:
    """Yield where the inside of something that is called a partition is read."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in _INSIDE or node.attr.startswith("_"):
            of = ast.unparse(node.value)
            if _PARTITION.search(of):
                yield node.lineno, f"{of}.{node.attr}"


def _modules() -> list[Path]:
    return [p for p in sorted(_ROOT.rglob("*.py")) if _OWNER not in p.parents]


def test_only_the_partition_package_reads_the_inside_of_a_partition() -> None:
    found = [
        f"{path.relative_to(_ROOT)}:{line}: {read}"
        for path in _modules()
        if path.relative_to(_ROOT).parts[0] in ("broker", "api", "cluster")
        for line, read in _reads(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "partition.state.end_offset",
        "self._partition.messages.reader",
        "topic.partitions[0].events",
        "topic.partitions.get(number).dispatch",
        "[p.state for p in topic.partitions]",
        "partition._ready.current",
    ],
)
def test_a_read_of_the_inside_would_be_noticed(source: str) -> None:
    assert list(_reads(source))


def test_queries_and_other_objects_are_not_mistaken_for_it() -> None:
    assert not list(_reads("partition.end_offset; view.messages(0, 1); self.state.groups"))


def test_the_partition_has_no_public_attribute_of_these_names() -> None:
    tree = ast.parse((_OWNER / "partition.py").read_text())
    (partition,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Partition")
    assigned = {
        node.attr
        for node in ast.walk(partition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    assert not assigned & _INSIDE
    assert {f"_{name}" for name in ("state", "messages", "events")} <= assigned
