from __future__ import annotations

import logging

import pytest

from goq.config.sources import load_config
from goq.process.run import _tell_start


@pytest.mark.parametrize(
    ("listen", "is_open"),
    [
        ("127.0.0.1:0", False), ("127.3.2.1:0", False), ("[::1]:0", False), ("localhost:0", False),
        ("0.0.0.0:0", True), ("[::]:0", True), ("10.0.0.1:0", True), ("goq.example.com:0", True),
    ],
)  # fmt: skip
def test_an_address_that_others_reach_is_told(
    listen: str, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "goq.node"):
        _tell_start(load_config(None, {"broker.listen": listen}), "http://x")
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert bool(warned) is is_open
