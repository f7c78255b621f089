"""The recorder sees every way in which a process changes files, or says that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.storage.power.record import COMPILER, Recorder, build, read_record
from tests.support.storage.power.volume import Volume, read_tree

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler: nothing is recorded")

EVERY_CHANGE = """
import os, sqlite3, sys
os.mkdir("a")
os.makedirs("a/b/c")
fd = os.open("a/one", os.O_RDWR | os.O_CREAT)
os.write(fd, b"written")
os.pwrite(fd, b"placed", 4)
os.writev(fd, [b"in ", b"parts"])
os.pwritev(fd, [b"placed ", b"parts"], 9000)
os.ftruncate(fd, 9004)
os.posix_fallocate(fd, 0, 12000)
copy = os.dup(fd)
os.close(fd)
os.pwrite(copy, b"by a copy", 100)
os.fsync(copy)
os.dup2(copy, 50)
os.write(50, b"!")
fd = os.open("a/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, b"first")
os.pwrite(fd, b"second", 0)  # appended all the same, on Linux
os.write(fd, b"third")
os.rename("a/log", "a/b/log")
os.link("a/b/log", "a/linked")
os.write(fd, b"fourth")
os.replace("a/one", "a/b/c/one")
os.truncate("a/b/c/one", 11000)
with open("a/text", "w") as file:
    file.write("text" * 5000)
with open("a/text", "w") as file:
    file.write("shorter")
folder = os.open("a", os.O_RDONLY)
os.rename("linked", "renamed", src_dir_fd=folder, dst_dir_fd=folder)
os.mkdir("gone", dir_fd=folder)
os.rmdir("gone", dir_fd=folder)
os.close(os.open("gone", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
os.unlink("gone", dir_fd=folder)
os.rename("a/b", "a/moved")
db = sqlite3.connect("a/db")
db.execute("pragma journal_mode=wal")
db.execute("create table t (x)")
db.executemany("insert into t values (?)", [(str(n) * 50,) for n in range(1000)])
db.commit()
db.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"))


def recorded(library: Path, tmp_path: Path, code: str) -> Recorder:
    recorder = Recorder(library, tmp_path / "root", tmp_path / "record")
    recorder.root.mkdir()
    environment = os.environ | recorder.environment
    subprocess.run([sys.executable, "-c", code], cwd=recorder.root, env=environment, check=True)
    return recorder


def test_the_record_of_every_change_gives_the_same_files(library: Path, tmp_path: Path) -> None:
    recorder = recorded(library, tmp_path, EVERY_CHANGE)
    found = read_tree(recorder.root)
    assert Volume(read_record(recorder.record), recorder.root).whole() == found
    assert found["a/moved/log"] == b"firstsecondthirdfourth"


@pytest.mark.parametrize(
    "code",
    [
        "import os; a, b = open('a', 'wb+'), open('b', 'wb'); a.write(b'x'); a.flush(); a.seek(0);"
        " os.sendfile(b.fileno(), a.fileno(), 0, 1)",
        "import os; a, b = open('a', 'wb+'), open('b', 'wb'); a.write(b'x'); a.flush(); a.seek(0);"
        " os.copy_file_range(a.fileno(), b.fileno(), 1)",
        "import mmap; a = open('a', 'wb+'); a.write(b'x'); a.flush(); mmap.mmap(a.fileno(), 1)",
        "import os; os.symlink('a', 'b')",
        "import os; os.sync()",
        "import os; os.mkdir('a'); os.rename('a', '../a')",
    ],
)
def test_a_change_that_is_not_followed_is_told(code: str, library: Path, tmp_path: Path) -> None:
    recorder = recorded(library, tmp_path, code)
    with pytest.raises(AssertionError, match="not followed"):
        read_record(recorder.record)
