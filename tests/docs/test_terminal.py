"""The runner of the documentation's sessions takes what is written for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.terminal import Step, pattern, session


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("2025-01-15 10:30:00.000000Z  PUBLISHED", "2026-11-21 09:00:01.123456Z  PUBLISHED"),
        ("visible until 10:30:30", "visible until 23:59:59"),
        ("1 attempt · 36.012 s from publish", "1 attempt · 0.004 s from publish"),
        ("id …", "id 4711"),
        ("a.b (c)", "a.b (c)"),
    ],
)
def test_what_differs_from_run_to_run_is_compared_by_its_shape(written: str, printed: str) -> None:
    assert pattern(written).fullmatch(printed)


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("2025-01-15 10:30:00.000000Z  PUBLISHED", "2026-11-21 09:00:01.123456Z  DELIVERED"),
        ("orders:0:1", "orders:0:2"),
        ("attempt=1", "attempt=11"),
        ("a.b", "axb"),
    ],
)
def test_what_does_not_differ_is_compared_by_its_letters(written: str, printed: str) -> None:
    assert not pattern(written).fullmatch(printed)


def test_a_session_is_every_console_block_without_the_node(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n```console\n$ goq serve\ngoq ready\n```\n"
        "```sh\n$ not this\n```\n```console\n$ one\na\n\nb\n$ two\n```\n"
    )
    assert list(session(page)) == [Step("one", ("a", "", "b")), Step("two", ())]
