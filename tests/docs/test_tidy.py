"""Rules of names, folders and docstrings that the packages keep."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import pytest

from tests.support.paths import REPOSITORY

Tree = Mapping[PurePosixPath, str]
"""Sources by path; paths begin with the package."""

PACKAGES = ("goq", "goq_cli")
GENERATED = "_sync"
ENTRIES_MAX = 14
LARGE_FOLDERS = {
    "goq": "the public root",
    "goq_cli/commands": "one module a command",
    "goq/api/routes": "one module a resource",
}
OPENINGS = ("Let", "Hear", "Being", "Who", "What")
NOUNS = ("routing", "hashing", "framing", "staging", "sharing", "string")


def sources(packages: Iterable[str] = PACKAGES) -> Tree:
    """Return the sources of packages by path."""
    return {
        PurePosixPath(path.relative_to(REPOSITORY).as_posix()): path.read_text()
        for package in packages
        for path in sorted((REPOSITORY / package).rglob("*.py"))
    }


# Rules: each returns what breaks it


def docstring_openings(tree: Tree) -> Iterator[str]:
    """No docstring begins with a word of the old dialect."""
    for path, source in tree.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if text.partition(" ")[0].rstrip(",.:") in OPENINGS:
                    name = getattr(node, "name", "module")
                    yield f"{path}: the docstring of {name} begins with {text[:30]!r}"


def gerund_modules(tree: Tree) -> Iterator[str]:
    """A module is named by a noun."""
    for path in tree:
        if path.stem.endswith("ing") and path.stem.rpartition("_")[2] not in NOUNS:
            yield f"{path} is named by a gerund"


def homonyms(tree: Tree) -> Iterator[str]:
    """No two public classes have one name."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, source in tree.items():
        if GENERATED in path.parts:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    for name, found in places.items():
        if len(found) > 1:
            yield f"{name} is a class of {', '.join(found)}"


def large_folders(tree: Tree) -> Iterator[str]:
    """A folder shows few entries; ``__init__`` is not counted."""
    entries = {
        parent / part
        for path in tree
        if path.stem != "__init__"
        for parent, part in zip(reversed(path.parents), path.parts, strict=True)
    }
    for folder, count in Counter(str(entry.parent) for entry in entries).items():
        if folder not in LARGE_FOLDERS and count > ENTRIES_MAX:
            yield f"{folder} has {count} entries"


def incomplete_maps(tree: Tree) -> Iterator[str]:
    """The docstring of a folder lists each module and each sub-package, at the start of a line."""
    for path, source in tree.items():
        if path.stem != "__init__":
            continue
        folder = path.parent
        names = {
            other.relative_to(folder).parts[0].removesuffix(".py")
            for other in tree
            if other.is_relative_to(folder)
        }
        listed = re.findall(r"^(\w+)", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE)
        for name in sorted(names - {"__init__", "__main__"} - set(listed)):
            yield f"{folder} does not list {name}"


def to_dos(tree: Tree) -> Iterator[str]:
    """Nothing is left to do."""
    for path, source in tree.items():
        for number, line in enumerate(source.splitlines(), start=1):
            if "TODO" in line:
                yield f"{path}:{number} says TODO"


Rule = Callable[[Tree], Iterator[str]]
RULES: list[Rule] = [
    docstring_openings,
    gerund_modules,
    homonyms,
    large_folders,
    incomplete_maps,
    to_dos,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_packages_keep_the_rule(rule: Rule) -> None:
    assert list(rule(sources())) == []


@pytest.mark.parametrize("package", ["tests", "bench"])
def test_the_folders_of_other_packages_are_small(package: str) -> None:
    assert list(large_folders(sources([package]))) == []


def test_the_folders_of_the_benchmarks_list_their_modules() -> None:
    assert list(incomplete_maps(sources(["bench"]))) == []


def tree_of(**files: str) -> Tree:
    """Return a tree of modules; ``a__b`` is ``goq/a/b.py``."""
    return {PurePosixPath("goq", *name.split("__")[:-1], name.split("__")[-1] + ".py"): text
            for name, text in files.items()}  # fmt: skip


def folder_map(text: str) -> Tree:
    """Return a folder with a module and a sub-package, and a docstring with this map."""
    init = {PurePosixPath("goq/log/__init__.py"): f'"""Log.\n\n{text}\n"""'}
    return init | dict(tree_of(log__a="", log__b__c=""))


GOOD: dict[Rule, Tree] = {
    docstring_openings: tree_of(
        a='"""Letters. What a log is."""', b="class Whole:\n  '''Whose.'''"
    ),
    gerund_modules: tree_of(string="", node_routing="", ring_buffer=""),
    homonyms: tree_of(a="class A: ...\nclass _B: ...", b="class _B: ...", _sync__a="class A: ..."),
    large_folders: tree_of(**{f"log__m{n}": "" for n in range(ENTRIES_MAX)}),
    incomplete_maps: folder_map("a  first\nb  second"),
    to_dos: tree_of(a="todo = 1"),
}
BAD: dict[Rule, Tree] = {
    docstring_openings: tree_of(a="class A:\n  async def f():\n    '''What is kept.'''"),
    gerund_modules: tree_of(log__keeping=""),
    homonyms: tree_of(a="class A: ...", b="class A: ..."),
    large_folders: tree_of(**{f"log__m{n}": "" for n in range(ENTRIES_MAX)}, log__sub__m=""),
    incomplete_maps: folder_map("a  first, and b"),
    to_dos: tree_of(a="# TODO: more"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_what_breaks_it_and_nothing_else(rule: Rule) -> None:
    assert list(rule(GOOD[rule])) == []
    assert len(list(rule(BAD[rule]))) == 1
