"""Mutation run: random small faults in the source, each of which the nearest tests should notice.

    python tools/mutants.py --count 200 --seed 1 goq/storage goq/delivery
    python tools/mutants.py --changed-since HEAD~20

Works on a copy of the tree. A mutant is killed if its tests fail or exceed the time limit. The
nearest tests of ``goq/a/b.py`` are ``tests/unit/a/test_b.py`` and the tests that import the module,
unit tests first. The exit code is 1 if less than ``--least`` percent are killed. The same seed on
the same source gives the same mutants.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("goq/storage", "goq/delivery", "goq/broker", "goq/cluster/replication")
TEST_FILES_MAX = 4
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
    """Drop what is no behaviour: names for types, log lines and limits at the top of a module."""

    class Dropper(ast.NodeTransformer):
        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            node.annotation = ast.Name("object", ast.Load(), lineno=node.lineno, col_offset=0)
            return self.generic_visit(node)

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.annotation = None
            return node

        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            is_log = isinstance(node.value, ast.Call) and "_log." in ast.unparse(node.value.func)
            return None if is_log else self.generic_visit(node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

    dropped = Dropper().visit(tree)
    assert isinstance(dropped, ast.Module)
    dropped.body = [
        each
        for each in dropped.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return dropped


def nearest_tests(root: Path, path: str) -> list[str]:
    """Return the test files of a module, the nearest first."""
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    imports = re.compile(
        rf"^(from {re.escape(module)} import|from {re.escape(package)} import .*\b{name}\b)", re.M
    )
    parts = Path(path).parts[1:]
    own = root / "tests/unit" / Path(*parts[:-1]) / f"test_{parts[-1]}"
    found = [own] if own.exists() else []
    layers = ("unit", "integration", "cluster")
    for layer in layers:
        for each in sorted((root / "tests" / layer).rglob("test_*.py")):
            if each not in found and imports.search(each.read_text()):
                found.append(each)
    if not found:
        folder = own.parent
        found = sorted(folder.glob("test_*.py"))
    return [str(each.relative_to(root)) for each in found[:TEST_FILES_MAX]]


def chosen(root: Path, files: list[str], count: int, seed: int) -> list[Mutant]:
    """Return random mutants of files that have tests, each place once."""
    every = [
        mutant
        for path in sorted(files)
        if nearest_tests(root, path)
        for mutant in mutants_of(path, (root / path).read_bytes())
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def is_green(root: Path, tests: list[str], limit_s: float) -> bool:
    """Return whether tests pass within the limit, run in a tree."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-m", "not long", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(root: Path, mutants: list[Mutant], limit_s: float) -> tuple[int, list[Mutant]]:
    """Try mutants in a tree; return how many were tried, and those that survived."""
    sound: dict[str, bool] = {}
    tried, survivors = 0, list[Mutant]()
    for number, mutant in enumerate(mutants, start=1):
        tests = nearest_tests(root, mutant.path)
        if mutant.path not in sound:
            sound[mutant.path] = is_green(root, tests, limit_s)
            if not sound[mutant.path]:
                print(f"{mutant.path}: left out, its tests fail or take over {limit_s:g} s")
        if not sound[mutant.path]:
            continue
        file = root / mutant.path
        source = file.read_bytes()
        tried += 1
        try:
            file.write_bytes(mutant.applied(source))
            if is_green(root, tests, limit_s):
                survivors.append(mutant)
                before = source.splitlines()[mutant.line - 1].decode().strip()
                print(f"{mutant.path}:{mutant.line}: {before}  ->  {mutant.text}")
        finally:
            file.write_bytes(source)
        if number % 20 == 0:
            print(f"{number} of {len(mutants)}, {len(survivors)} survived", flush=True)
    return tried, survivors


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="folders or files")
    parser.add_argument("--changed-since", metavar="COMMIT", help="only files changed since")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the tests of one")
    parser.add_argument("--least", type=float, default=85.0, help="percent to be killed")
    asked = parser.parse_args()
    listed = ["git", "ls-files", *asked.packages]
    if asked.changed_since:
        listed = ["git", "diff", "--name-only", asked.changed_since, "--", *asked.packages]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [name for name in names.split() if name.endswith(".py") and (ROOT / name).exists()]
    with tempfile.TemporaryDirectory(prefix="goq-mutants-") as folder:
        root = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, root, ignore=left_out)
        mutants = chosen(root, files, asked.count, asked.seed)
        tried, survivors = run(root, mutants, asked.limit)
    killed = 100 * (tried - len(survivors)) / max(tried, 1)
    print(f"{tried} mutants, seed {asked.seed}: {killed:.1f} % killed")
    return int(killed < asked.least)


if __name__ == "__main__":
    sys.exit(main())
