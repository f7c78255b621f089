"""The text log of a process: a record begins at the beginning of a line, and nothing else does."""

from __future__ import annotations

import logging
import sys

import pytest

from goq.process.log import TextFormatter


def formatted(message: str, *, fails: bool = False) -> str:
    record = logging.LogRecord("goq.test", logging.WARNING, "", 0, "said %s", (message,), None)
    if fails:
        try:
            raise ValueError(message)
        except ValueError:
            record.exc_info = sys.exc_info()
    return TextFormatter().format(record)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_peer_says_does_not_look_like_another_record(fails: bool) -> None:
    text = formatted("x\n2026-01-01 00:00:00,000 ERROR goq.node: forged", fails=fails)
    first, *more = text.split("\n")
    assert first.endswith("WARNING goq.test: said x")
    assert more
    assert all(line.startswith("    ") for line in more)


def test_control_characters_are_escaped_and_other_text_is_kept() -> None:
    text = formatted("\x1b[31mred\x9b0m\r\u2028\u202e ü €")
    assert text.endswith(r"said \x1b[31mred\x9b0m\r\u2028\u202e ü €")
