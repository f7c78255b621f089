"""The mutation run: which faults it makes, and that it tells killed ones from survivors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.paths import REPOSITORY
from tools.mutants import Mutant, chosen, mutants_of, nearest_tests, run

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


def test_a_seed_chooses_the_same_faults_again() -> None:
    first = chosen(REPOSITORY, [MODULE], 10, 1)
    assert first == chosen(REPOSITORY, [MODULE], 10, 1)
    assert first != chosen(REPOSITORY, [MODULE], 10, 2)
    assert nearest_tests(REPOSITORY, MODULE)[0] == "tests/unit/delivery/dedup/test_dedup_window.py"


def test_a_fault_that_a_test_notices_is_killed_and_another_survives(tmp_path: Path) -> None:
    (tmp_path / "goq").mkdir()
    (tmp_path / "goq/__init__.py").touch()
    (tmp_path / "tests/unit").mkdir(parents=True)
    source = "def larger(a, b):\n    return a > b\n\n\ndef unused(a):\n    return a + 1\n"
    (tmp_path / "goq/numbers.py").write_text(source)
    test = "from goq.numbers import larger\n\n\ndef test():\n    assert not larger(1, 1)\n"
    (tmp_path / "tests/unit/test_numbers.py").write_text(test)
    mutants = mutants_of("goq/numbers.py", source.encode())
    tried, survivors = run(tmp_path, mutants, 60.0)
    assert tried == len(mutants) == 3
    assert [each.text for each in survivors] == ["-", "2"]
    assert isinstance(survivors[0], Mutant)
    assert (tmp_path / "goq/numbers.py").read_text() == source
