"""The architecture page names files that exist, and every layer of the import contract."""

from __future__ import annotations

import re
import tomllib

from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "internals" / "architecture.md"
WALKS = ("Follow a publish", "Follow a receive", "Follow a failover")


def missing_files(text: str) -> list[str]:
    """Return the paths in ``text`` that name no file or folder of the repository."""
    named = re.findall(r"`(goq(?:_cli)?/[\w/.]*)`", text)
    return sorted({path for path in named if not (REPOSITORY / path).exists()})


def sections(text: str) -> dict[str, str]:
    """Return the text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_file_on_the_page_exists() -> None:
    assert missing_files(PAGE.read_text()) == []


def test_a_file_that_was_moved_is_found() -> None:
    assert missing_files("see `goq/node.py` and `goq/api/gone.py`") == ["goq/api/gone.py"]


def test_each_walk_names_files_in_order() -> None:
    found = sections(PAGE.read_text())
    for walk in WALKS:
        assert len(re.findall(r"`goq/[\w/]+\.py`", found[walk])) >= 6, walk
        assert re.findall(r"^(\d+)\. ", found[walk], re.MULTILINE)[:3] == ["1", "2", "3"]


def test_every_layer_of_the_contract_is_in_the_picture() -> None:
    configuration = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contracts = configuration["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["name"] == "Imports go down the layers only")
    names = {name.split(".")[1] for line in layers for name in line.split(" | ") if "." in name}
    picture = sections(PAGE.read_text())["Layers"]
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", picture)) == []
