from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

import pytest

from goq.config.sources import load_config
from goq.errors import GoqError, StorageFailed, StorageFull
from goq.node import NodeServer
from goq.process.run import _run, _tell_start


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


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EROFS, StorageFailed)]
)
def test_a_start_that_the_disk_refuses_tells_a_full_disk_from_a_failed_one(
    number: int, kind: type[GoqError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_node: NodeServer) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(NodeServer, "start", start)
    config = load_config(None, {"broker.data_dir": str(tmp_path)})
    with pytest.raises(GoqError, match=r"the node cannot start: .*: refused") as caught:
        asyncio.run(_run(config, lambda: config, lambda _config, _url: None))
    assert type(caught.value) is kind
