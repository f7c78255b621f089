"""Every snippet of docs/python.md runs, in the order of the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import goq
from goq.pytest_plugin import goq_client, goq_node
from tests.support.paths import REPOSITORY

__all__ = ["goq_client", "goq_node"]

PAGE = REPOSITORY / "docs/python.md"


def test_every_snippet_runs(
    goq_node: goq.Node, goq_client: goq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", page)
    names = vars(page)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) > 8
    for snippet in snippets:
        exec(compile(snippet.replace("http://127.0.0.1:8080", goq_node.url), PAGE, "exec"), names)
    goq_client.delete_topic("orders")
    names["test_an_order_is_billed"](goq_client)


def test_every_word_of_the_public_package_is_on_the_page() -> None:
    text = PAGE.read_text()
    for name in ("Client", "AsyncClient", "Node", "WorkerApp", "open", "GoqError"):
        assert name in goq.__all__
        assert re.search(rf"\b{name}\b", text), name
