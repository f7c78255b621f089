"""The manual pages, as ``man`` shows them and as a wheel installs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from goq_cli.main import COMMANDS
from tests.support.paths import REPOSITORY
from tools.man_pages import man_pages

MAN = REPOSITORY / "docs" / "man"
needs_man = pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")


def shown(page: Path) -> str:
    done = subprocess.run(
        ["man", "--warnings", "-l", str(page)],
        env=os.environ | {"MANWIDTH": "1000", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)


@needs_man
@pytest.mark.parametrize("name", sorted(path.name for path in MAN.glob("*.1")))
def test_every_page_is_sound_roff_and_has_its_name(name: str) -> None:
    assert f"       {name.removesuffix('.1')} - " in shown(MAN / name)


@needs_man
def test_pages_say_what_the_help_says() -> None:
    page = shown(MAN / "goq-produce.1")
    assert r"Ends a message; \n, \t, \0, \xHH are understood. [default: \n]" in page
    assert "goq produce [OPTIONS] {TOPIC} [FILE]..." in page
    topic = shown(MAN / "goq-topic.1")
    assert "GOQ TOPIC ALTER" in topic
    assert "--unset KEY" in topic
    overview = shown(MAN / "goq.1")
    assert "GOQ_SERVER" in overview
    for command in COMMANDS:
        assert f"goq-{command}(1)" in overview


@needs_man
def test_text_that_looks_like_roff_is_text(tmp_path: Path) -> None:
    page = tmp_path / "goq.1"
    page.write_text(man_pages([("`.x`", r".SH 'not' \fBa\fR \*request"), ("'a", "-b")])["goq.1"])
    assert r".SH 'not' \fBa\fR \*request" in shown(page)


def test_a_wheel_installs_every_page() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        [(place, [pattern])] = tomllib.load(file)["tool"]["setuptools"]["data-files"].items()
    assert place == "share/man/man1"
    installed = {path.name for path in REPOSITORY.glob(pattern)}
    assert installed == {"goq.1", *(f"goq-{name}.1" for name in COMMANDS)}
