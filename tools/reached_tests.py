"""Which tests reach which places of the source: a recording, and the pytest plugin that makes it.

The recording runs tests once in a tree whose source calls ``reached(place)`` before the statement
of each place. What runs while a module is imported belongs to no test. Only places that tests reach
in their own process are seen, not those in nodes that they start.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

_FOLDER = "GOQ_REACHED_TESTS"
_reached = set[int]()
reached = _reached.add


class ReachedTest(NamedTuple):
    """A test that passed, and how long it takes with its own fixtures when nothing else runs."""

    seconds: float
    name: str


def record(
    tree: Path, places: dict[str, list[tuple[int, int]]], tests: Sequence[str], jobs: int
) -> dict[int, list[ReachedTest]]:
    """Run tests in a tree, and return those that pass and reach each place, the quickest first.

    ``places`` maps a file to pairs of a place's number and where in the file it begins, in bytes.
    """
    sources = {path: (tree / path).read_bytes() for path in places}
    folder = tree / ".reached"
    folder.mkdir()
    words = ["-n", str(jobs), "-q", "-p", "tools.reached_tests", "-m", "not long", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), _FOLDER: str(folder)}
    try:
        for path, source in sources.items():
            (tree / path).write_text(_recorded(source, places[path]))
        command = [sys.executable, "-m", "pytest", *words]
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=False)
    finally:
        for path, source in sources.items():
            (tree / path).write_bytes(source)
    found = defaultdict[int, list[ReachedTest]](list)
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            name, seconds, numbers = json.loads(line)
            for number in numbers:
                found[number].append(ReachedTest(seconds, name))
    return {number: sorted(each) for number, each in found.items()}


def _recorded(source: bytes, places: Iterable[tuple[int, int]]) -> str:
    """Return a module that tells before each statement which places are in it.

    What is in the arguments of a function is told when it is called: a default has its effect then.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    calls = defaultdict[ast.stmt, list[int]](list)
    for number, at in places:
        calls[_statement_at(tree, at, starts)].append(number)

    class Teller(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
            self.generic_visit(node)
            if not isinstance(node, ast.stmt) or node not in calls:
                return node
            told = "; ".join(f"_reached_tests.reached({number})" for number in calls[node])
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = ast.get_docstring(node) is not None
                node.body[first:first] = ast.parse(told).body
                return node
            return [*ast.parse(told).body, node]

    Teller().visit(tree)
    body = tree.body
    first = next(
        place
        for place, each in enumerate(body)
        if not isinstance(each, ast.ImportFrom) or each.module != "__future__"
        if not isinstance(each, ast.Expr)
    )
    body[first:first] = ast.parse("from tools import reached_tests as _reached_tests").body
    return ast.unparse(ast.fix_missing_locations(tree))


def _statement_at(tree: ast.Module, at: int, starts: list[int]) -> ast.stmt:
    """Return the innermost statement around a place."""

    def statements(node: ast.AST) -> Iterator[ast.stmt]:
        for each in ast.walk(node):
            if isinstance(each, ast.stmt):
                assert each.end_lineno is not None
                assert each.end_col_offset is not None
                start = starts[each.lineno - 1] + each.col_offset
                if start <= at < starts[each.end_lineno - 1] + each.end_col_offset:
                    yield each

    return max(statements(tree), key=lambda each: (each.lineno, each.col_offset))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Forget what other tests reached."""
    _reached.clear()
    item.stash[_SECONDS] = 0.0
    item.stash[_CPU_S] = time.process_time()
    return (yield)


_SECONDS = pytest.StashKey[float]()
_CPU_S = pytest.StashKey[float]()
_SLOWED_BY = 4
"""By how much other work slows a test at most: then fewer would be tried than there is time for."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write down what a test has reached when its parts have passed."""
    report = yield
    item.stash[_SECONDS] += call.duration
    if not report.passed:
        item.stash[_SECONDS] = float("inf")
    if call.when == "teardown" and item.stash[_SECONDS] < float("inf") and _reached:
        file = Path(os.environ[_FOLDER]) / str(os.getpid())
        with file.open("a") as out:
            cpu_s = time.process_time() - item.stash[_CPU_S]
            seconds = max(cpu_s, item.stash[_SECONDS] / _SLOWED_BY)
            row = item.nodeid, round(seconds, 4), sorted(_reached)
            out.write(json.dumps(row) + "\n")
    return report
