"""The mutation run: which faults it makes, and that it tells killed ones from survivors."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tools.mutants import (
    Mutant,
    ProcessGroups,
    chosen,
    is_killed,
    mutants_of,
    nearest_tests,
    run,
)
from tools.reached_tests import ReachedTest

MODULE = "goq/delivery/dedup/id_table.py"


_COMPARED = """
import ast, sys
from pathlib import Path
from tools.mutants import mutants_of
source = Path(sys.argv[1]).read_bytes()
mutants = mutants_of(sys.argv[1], source)
own = ast.dump(ast.parse(source))
print(len(mutants), sum(ast.dump(ast.parse(each.applied(source))) == own for each in mutants))
"""


def test_each_fault_is_another_program() -> None:
    """In a process of its own: CPython 3.11 fails now and then to parse where threads run."""
    words = [sys.executable, "-c", _COMPARED, MODULE]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    count, equal = map(int, done.stdout.split())
    assert count > 50
    assert equal == 0


def test_what_is_no_behaviour_has_no_faults() -> None:
    source = """
LIMIT = 3


@dataclass(frozen=True)
class Pair:
    first: Literal[1] = 2

    def __repr__(self) -> str:
        return str(self.first + 1)


class Record(msgspec.Struct, frozen=True):
    pass


def check(pairs: tuple[int, 2]) -> None:
    _log.info("checked %d", 1 + 1)
    for one, other in zip(pairs, pairs, strict=True):
        if one < other:
            raise ValueError(f"{one + 1} is less")
"""
    found = mutants_of("goq/pairs.py", source.encode())
    lines = source.splitlines()
    assert [(lines[each.line - 1].strip(), each.text) for each in found] == [
        ("first: Literal[1] = 2", "3"),
        ("if one < other:", "<="),
        ('raise ValueError(f"{one + 1} is less")', "pass"),
    ]


def test_a_seed_chooses_the_same_faults_again() -> None:
    first = chosen(REPOSITORY, [MODULE], 10, 1)
    assert first == chosen(REPOSITORY, [MODULE], 10, 1)
    assert first != chosen(REPOSITORY, [MODULE], 10, 2)


def test_tests_of_the_module_come_first_and_then_the_quickest_of_each_other_file(
    tmp_path: Path,
) -> None:
    for name, text in (("near", "from goq.a import b"), ("far", ""), ("other", "")):
        (tmp_path / f"test_{name}.py").write_text(text)
    reaching = [
        ReachedTest(0.1, "test_far.py::quick"),
        ReachedTest(0.2, "test_far.py::slow"),
        ReachedTest(0.3, "test_other.py::test"),
        ReachedTest(5.0, "test_near.py::test"),
        ReachedTest(50.0, "test_near.py::slower"),
    ]
    assert nearest_tests(tmp_path, "goq/a/b.py", reaching[:4]) == [
        "test_near.py::test",
        "test_far.py::quick",
        "test_other.py::test",
        "test_far.py::slow",
    ]
    assert nearest_tests(tmp_path, "goq/a/b.py", reaching) == [
        "test_near.py::test",
        "test_far.py::quick",
        "test_other.py::test",
        "test_far.py::slow",
    ]


def test_each_function_near_a_module_has_its_turn_with_its_longest_test_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_near.py").write_text("from goq.a import b")
    reaching = [
        ReachedTest(0.1, "test_near.py::random[1]"),
        ReachedTest(0.2, "test_near.py::plain"),
        ReachedTest(0.3, "test_near.py::random[2]"),
    ]
    assert nearest_tests(tmp_path, "goq/a/b.py", reaching) == [
        "test_near.py::random[2]",
        "test_near.py::plain",
        "test_near.py::random[1]",
    ]


def test_tests_named_after_a_module_are_near_though_they_do_not_import_it(tmp_path: Path) -> None:
    names = ("a/test_b.py", "a/test_b_clock.py", "a/test_bb.py", "c/test_b.py")
    reaching = [ReachedTest(number, f"tests/{name}::t") for number, name in enumerate(names)]
    for name in names:
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    slowest_first = [each._replace(seconds=4 - each.seconds) for each in reaching]
    assert nearest_tests(tmp_path, "goq/a/b.py", sorted(slowest_first)) == [
        "tests/a/test_b_clock.py::t",
        "tests/a/test_b.py::t",
        "tests/c/test_b.py::t",
        "tests/a/test_bb.py::t",
    ]


def tree_of(folder: Path, tests: str) -> Path:
    (folder / "goq").mkdir(parents=True)
    (folder / "goq/__init__.py").touch()
    source = '''
def larger(a, b):
    return a > b


def smaller(a, b):
    return a < b


def unused(a):
    return a + 1


class Counter:
    count = 0


def at_least(number, least=3):
    """Return a number, or what it is at least."""
    return number if number > least else least
'''
    (folder / "goq/numbers.py").write_text(source)
    (folder / "tests").mkdir()
    (folder / "tests/test_numbers.py").write_text(tests)
    (folder / "tools").mkdir()
    shutil.copy(REPOSITORY / "tools/reached_tests.py", folder / "tools")
    return folder


@pytest.mark.long
def test_a_fault_that_a_test_notices_is_killed_and_another_survives(tmp_path: Path) -> None:
    tests = """
from goq.numbers import Counter, larger, smaller


def test_larger():
    assert not larger(1, 1)


def test_what_ran_when_the_module_was_imported():
    assert Counter.count == 0


def test_smaller():
    smaller(1, 2)
"""
    trees = [tree_of(tmp_path / str(number), tests) for number in range(2)]
    for tree in trees:  # it imports the module in another way: only the recording leads to it
        (tree / "tests/test_defaults.py").write_text("""
import goq.numbers


def test_a_default():
    assert goq.numbers.at_least(0) == 3
""")
    source = (trees[0] / "goq/numbers.py").read_bytes()
    mutants = mutants_of("goq/numbers.py", source)
    assert [each.text for each in mutants] == [">=", "<=", "-", "2", "1", "4", ">="]
    survivors = run(trees, mutants[:-1], ["tests"], 60.0)
    assert sorted(each.text for each in survivors) == ["-", "2", "<="]
    assert all((tree / "goq/numbers.py").read_bytes() == source for tree in trees)


@pytest.mark.long
def test_a_test_that_fails_by_itself_kills_nothing(tmp_path: Path) -> None:
    tests = """
from goq.numbers import larger


def test_wrong():
    assert larger(1, 2) == 7


def test_weak():
    assert larger(2, 1)
"""
    tree = tree_of(tmp_path, tests)
    names = ["tests/test_numbers.py::test_wrong", "tests/test_numbers.py::test_weak"]
    greater, *_ = mutants_of("goq/numbers.py", (tree / "goq/numbers.py").read_bytes())
    assert not is_killed(tree, greater, names, 60.0)
    never = Mutant(greater.path, greater.line, greater.start, greater.end, "<")
    assert is_killed(tree, never, names, 60.0)


def test_a_fault_with_which_nothing_can_be_collected_is_killed_without_a_run_of_all(
    tmp_path: Path,
) -> None:
    tree = tree_of(tmp_path, "def test_nothing(): pass\n")
    (tree / "tests/conftest.py").write_text("import goq.numbers\n")
    (tree / "tests/test_slow.py").write_text("def test_slow():\n    while True: pass\n")
    source = (tree / "goq/numbers.py").read_bytes()
    count = next(each for each in mutants_of("goq/numbers.py", source) if each.text == "1")
    broken = count._replace(text="1 / 0")
    names = ["tests/test_numbers.py", "tests/test_slow.py"]
    assert is_killed(tree, broken, names, 60.0)
    assert not is_killed(tree, count, names[:1], 60.0)


CHILD = "import time; time.sleep(600)"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}])
print("begun", flush=True)
child.wait()
"""


def test_processes_end_with_their_children_and_none_begins_afterwards() -> None:
    groups = ProcessGroups()
    command = [sys.executable, "-c", PARENT.format(child=CHILD)]
    with groups.start(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with process.stdout as told:
            assert told.readline() == b"begun\n"
            groups.end()
            assert process.wait(60) == -signal.SIGKILL
            assert told.read() == b""  # the child held it open too
    with pytest.raises(SystemExit), groups.start(command):
        pass


def test_a_process_that_goes_on_is_ended_when_nobody_waits_for_it() -> None:
    with ProcessGroups().start([sys.executable, "-c", CHILD]) as process:
        assert process.poll() is None
    assert process.poll() == -signal.SIGKILL
