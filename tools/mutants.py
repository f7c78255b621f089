"""Mutation run: random small faults in the source, each of which the nearest tests should notice.

    python tools/mutants.py --count 200 --seed 1 goq/storage goq/delivery
    python tools/mutants.py --changed-since HEAD~20

Works on copies of the tree. First the tests run once, to learn which of them reach which fault.
Then each fault is tried with the nearest of those, as many as take 45 s together: first tests of
files that import its module or are named after it, one of each function after the other, then the
quickest of each other file, in this order. A mutant is killed if one of them fails, or hangs, that
passes without the fault. What runs while a module is imported, such as a default of a field, is
tried with all tests of files that import its module. A fault that no test reaches survives. The
exit code is 1 if less than ``--least`` percent are killed. The same seed on the same source gives
the same mutants.

No mutants are made of what is no behaviour: types, decorators, log lines, texts of errors, limits
at the top of a module, ``strict=`` of zip, ``daemon=`` of threads, ``frozen=`` of values, and
``__repr__``.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import itertools
import json
import os
import py_compile
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.reached_tests import ReachedTest, record  # noqa: E402 - from ROOT

PACKAGES = ("goq/storage", "goq/delivery", "goq/broker", "goq/cluster/replication")
TESTS = (
    "tests/unit",
    "tests/integration/broker",
    "tests/integration/node",
    "tests/integration/api",
    "tests/cluster/replication",
    "tests/sim",
)
SECONDS_MAX = 45.0
TESTS_MAX = 200
_PASSED, _NOTHING_COLLECTED = 0, 4  # what pytest returns; the second where a conftest fails
_SWAPPED: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.And: "or",
    ast.Or: "and",
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A change of one place: bytes from ``start`` up to ``end`` of a file become ``text``."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def whole(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        return Mutant(path, node.lineno, start, end, text)

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutant]:
        """Swap the operator that stands between two operands, unless a comment is there."""
        swapped = _SWAPPED.get(type(operator))
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)
        gap = source[start:end].decode()
        found = re.fullmatch(r"([\s)]*)([^\s()]+(?: not| in)?)([\s(]*)", gap)
        if swapped is not None and found is not None:
            start += len(found[1])
            yield Mutant(path, left.end_lineno, start, start + len(found[2]), swapped)

    def places(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left, [operator], [right]):
                yield from between(left, right, operator)
            case ast.BinOp(left, operator, right):
                yield from between(left, right, operator)
            case ast.BoolOp(operator, values):
                for left, right in itertools.pairwise(values):
                    yield from between(left, right, operator)
            case ast.UnaryOp(ast.Not(), operand):
                yield whole(node, f"({ast.unparse(operand)})")
            case ast.Constant(bool(value)):
                yield whole(node, str(not value))
            case ast.Constant(int(value)):
                yield whole(node, str(value + 1))
            case ast.Call(ast.Name(name) as called) if name in _CALLS:
                yield whole(called, _CALLS[name])
            case ast.Expr(ast.Call() | ast.Await()):
                yield whole(node, "pass")
            case ast.AugAssign():
                yield whole(node, "pass")
            case ast.Raise() | ast.Continue() | ast.Break():
                yield whole(node, "pass")
            case _:
                pass

    found = [each for node in ast.walk(_code_of(ast.parse(source))) for each in places(node)]
    return sorted(set(found), key=lambda each: (each.start, each.end, each.text))


def _code_of(tree: ast.Module) -> ast.Module:
    """Drop what is no behaviour, as the top of this module lists it."""

    class Dropper(ast.NodeTransformer):
        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            node.annotation = ast.Name("object", ast.Load(), lineno=node.lineno, col_offset=0)
            return self.generic_visit(node)

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.annotation = None
            return node

        def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
            return None if node.arg in {"strict", "daemon", "frozen"} else self.generic_visit(node)

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            is_log = isinstance(node.value, ast.Call) and "_log." in ast.unparse(node.value.func)
            return None if is_log else self.generic_visit(node)

        def visit_Raise(self, node: ast.Raise) -> ast.AST:
            for each in ast.walk(node):
                if isinstance(each, ast.JoinedStr):
                    each.values = []
            return self.generic_visit(node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
            return self._function(node)

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST | None:
            return self._function(node)

        def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST | None:
            node.returns = None
            node.decorator_list = []
            return None if node.name == "__repr__" else self.generic_visit(node)

        def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
            node.decorator_list = []
            return self.generic_visit(node)

    dropped = Dropper().visit(tree)
    assert isinstance(dropped, ast.Module)
    dropped.body = [
        each
        for each in dropped.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return dropped


def chosen(root: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return random mutants of files, each place once."""
    every = [
        mutant for path in sorted(files) for mutant in mutants_of(path, (root / path).read_bytes())
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def nearest_tests(root: Path, path: str, reaching: Sequence[ReachedTest]) -> list[str]:
    """Return the tests to try a fault of a file with, of those that reach it, quickest first."""
    imports, module = _imports_of(path), Path(path)
    named = re.compile(rf"/{module.parent.name}/test_{module.stem}(_\w+)?\.py$")
    by_file: dict[str, list[ReachedTest]] = {}
    for test in reaching:
        by_file.setdefault(test.name.partition("::")[0], []).append(test)
    near = [
        file for file in by_file if named.search(file) or imports.search((root / file).read_text())
    ]
    far = [by_file[file] for file in by_file if file not in near]
    in_order = [
        *_in_turns(_by_function(each for file in near for each in by_file[file])),
        *_in_turns(far),
    ]
    found, seconds = list[str](), 0.0
    for each in in_order:
        if len(found) < TESTS_MAX and (not found or seconds + each.seconds <= SECONDS_MAX):
            seconds += each.seconds
            found.append(each.name)
    return found


def _by_function(tests: Iterable[ReachedTest]) -> list[list[ReachedTest]]:
    """Return tests by their functions, the quickest first; of each its longest first.

    The quickest seed of a random history is one in which nothing happens.
    """
    found: dict[str, list[ReachedTest]] = {}
    for each in sorted(tests):
        found.setdefault(each.name.partition("[")[0], []).append(each)
    return [each[::-1] for each in found.values()]


def _in_turns(lists: Iterable[list[ReachedTest]]) -> list[ReachedTest]:
    """Return the first of each list, then the second of each, and so on."""
    turns = itertools.zip_longest(*lists)
    return [each for turn in turns for each in turn if each is not None]


def importing_tests(root: Path, path: str, tests: Sequence[str]) -> list[str]:
    """Return the files of tests that import a module."""
    imports = _imports_of(path)
    files = [
        file
        for each in tests
        for file in ([root / each] if each.endswith(".py") else sorted((root / each).rglob("*.py")))
    ]
    return [str(each.relative_to(root)) for each in files if imports.search(each.read_text())]


def _imports_of(path: str) -> re.Pattern[str]:
    """Return a pattern of the lines that import a module."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    return re.compile(
        rf"^\s*from ({re.escape(module)} import|{re.escape(package)} import .*\b{name}\b)", re.M
    )


class ProcessGroups:
    """The processes under way, each with a session of its own: nobody else ends its children."""

    def __init__(self) -> None:
        self._processes = set[subprocess.Popen[bytes]]()
        self._lock = threading.RLock()  # a second signal may come while the first one ends them
        self._has_ended = False

    @contextmanager
    def start(self, command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process, and end it with all its children on leaving."""
        with self._lock:
            if self._has_ended:
                raise SystemExit(1)
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._processes.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._processes.discard(process)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._has_ended = True
            for process in self._processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


PROCESSES = ProcessGroups()


def failing_test(root: Path, tests: Sequence[str], limit_s: float) -> str | None:
    """Run tests in a tree; return the first that fails, ``""`` if they hang, None if all pass.

    The first of all fails where no test can be collected.
    """
    cache = root / ".failed"
    shutil.rmtree(cache, ignore_errors=True)
    words = ["-n", "0", "-q", "-x", "-o", f"cache_dir={cache}", *tests]
    with PROCESSES.start(
        [sys.executable, "-m", "pytest", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return ""
    if status in (_PASSED, _NOTHING_COLLECTED):
        return None if status == _PASSED else tests[0]
    failed = cache / "v/cache/lastfailed"
    return next(iter(json.loads(failed.read_text())), "") if failed.exists() else ""


def is_killed(root: Path, mutant: Mutant, tests: Sequence[str], limit_s: float) -> bool:
    """Return whether a test fails or hangs with the fault, and passes without it."""
    file = root / mutant.path
    source = file.read_bytes()
    left = list(tests)
    while left:
        try:
            file.write_bytes(mutant.applied(source))
            failed = failing_test(root, left, limit_s)
        finally:
            file.write_bytes(source)
        if failed is None:
            return False
        suspects = [failed] if failed else left
        if failing_test(root, suspects, limit_s) is None:
            return True
        left = [each for each in left if each not in suspects]
    return False


def run(
    trees: Sequence[Path], mutants: Sequence[Mutant], tests: Sequence[str], limit_s: float
) -> list[Mutant]:
    """Try mutants in trees, several at once; return those that survived."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, mutant in enumerate(mutants):
        places.setdefault(mutant.path, []).append((number, mutant.start))
    lines = {path: (trees[0] / path).read_text().splitlines() for path in places}
    reaching = record(trees[0], places, tests, len(trees))
    free = queue.SimpleQueue[Path]()
    for tree in trees:
        free.put(tree)

    def survives(number: int) -> bool:
        tree, mutant = free.get(), mutants[number]
        try:
            nearest = nearest_tests(tree, mutant.path, reaching.get(number, []))
            nearest = nearest or importing_tests(tree, mutant.path, tests)
            return not is_killed(tree, mutant, nearest, limit_s)
        finally:
            free.put(tree)

    survivors = list[Mutant]()
    with ThreadPoolExecutor(len(trees)) as pool:
        runs = {pool.submit(survives, number): number for number in range(len(mutants))}
        for done, each in enumerate(as_completed(runs), start=1):
            mutant = mutants[runs[each]]
            if each.result():
                survivors.append(mutant)
                line = lines[mutant.path][mutant.line - 1].strip()
                told = f"{mutant.path}:{mutant.line}: {line}  ->  {mutant.text}"
                print(told if runs[each] in reaching else f"{told}  (no test reaches it)")
            if done % 20 == 0:
                print(f"{done} of {len(mutants)}, {len(survivors)} survived", flush=True)
    return survivors


def _compile(tree: Path) -> None:
    """Compile the source once, not in each process of each test; a fault is told by its hash."""
    for each in ("goq", "goq_cli", "tests", "tools"):
        compileall.compile_dir(
            tree / each, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )


def _end(number: int, _frame: object) -> None:
    PROCESSES.end()
    sys.exit(128 + number)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders or files")
    parser.add_argument("--changed-since", metavar="COMMIT", help="only files changed since")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults at once")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for the tests of one")
    parser.add_argument("--least", type=float, default=85.0, help="percent to be killed")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders or files of tests")
    asked = parser.parse_args()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _end)
    listed = ["git", "ls-files", *asked.packages]
    if asked.changed_since:
        listed = ["git", "diff", "--name-only", asked.changed_since, "--", *asked.packages]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [name for name in names.split() if name.endswith(".py") and (ROOT / name).exists()]
    with tempfile.TemporaryDirectory(prefix="goq-mutants-") as folder:
        trees = [Path(folder) / f"tree-{job}" for job in range(asked.jobs)]
        left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".goq-*")
        for tree in trees:
            shutil.copytree(ROOT, tree, ignore=left_out)
            _compile(tree)
        mutants = chosen(trees[0], files, asked.count, asked.seed)
        survivors = run(trees, mutants, asked.tests, asked.limit)
    killed = 100 * (len(mutants) - len(survivors)) / max(len(mutants), 1)
    print(f"{len(mutants)} mutants, seed {asked.seed}: {killed:.1f} % killed")
    return int(killed < asked.least)


if __name__ == "__main__":
    sys.exit(main())
