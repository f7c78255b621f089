"""Starts that are refused: an open node that others reach, and secrets that others may read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from goq.config.exposure import check_secret_files
from goq.config.sources import load_config
from goq.errors import UsageError
from goq.node import NodeServer

OPEN = ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "goq.example.com:0"]
CLOSED = ["127.0.0.1:0", "127.3.2.1:0", "[::1]:0", "localhost:0"]


def start(data_dir: Path, **settings: object) -> None:
    """Start a node and stop it."""
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    config = load_config(None, {"broker.data_dir": str(data_dir), **flags})

    async def run() -> None:
        node = NodeServer(config)
        await node.start()
        await node.stop()

    asyncio.run(run())


@pytest.mark.parametrize("listen", OPEN)
def test_an_open_node_that_others_reach_does_not_start_and_says_the_ways_out(
    listen: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    with pytest.raises(UsageError) as refused:
        start(data_dir, broker__listen=listen)
    assert refused.value.exit_code == 2
    for way in ("goq token create", "security.auth=tokens", "security.allow_open=true"):
        assert way in refused.value.detail
    assert not data_dir.exists()


@pytest.mark.parametrize("listen", CLOSED[:2])
def test_a_node_that_serves_its_machine_alone_starts_without_tokens(
    listen: str, tmp_path: Path
) -> None:
    start(tmp_path, broker__listen=listen)
    assert not (tmp_path / "admin.token").exists()


@pytest.mark.parametrize("setting", [{"security__auth": "tokens"}, {"security__allow_open": True}])
def test_a_node_with_tokens_or_by_consent_serves_other_machines(
    setting: dict[str, object], tmp_path: Path
) -> None:
    start(tmp_path, broker__listen="0.0.0.0:0", **setting)
    assert (tmp_path / "admin.token").exists() is ("security__auth" in setting)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_secret_that_others_may_read_stops_the_start(mode: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    secret.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        start(
            tmp_path / "data",
            cluster__listen="127.0.0.1:0",
            cluster__peers="node-1=127.0.0.1:1",
            cluster__secret_file=str(secret),
        )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("mode", [0o444, 0o604, 0o646, 0o442])
def test_a_secret_of_another_owner_that_everybody_may_use_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    for setting in ("cluster.secret_file", "security.tls.key_file", "cluster.tls.key_file"):
        section = setting.rpartition(".")[0]
        files = {f"{section}.cert_file": "c", f"{section}.ca_file": "a"} if "tls" in section else {}
        config = load_config(
            None,
            {
                "cluster.listen": "127.0.0.1:0",
                "cluster.peers": "node-1=127.0.0.1:1",
                "cluster.secret_file": str(tmp_path / "absent"),
                **files,
                setting: str(secret),
            },
        )
        secret.chmod(mode)
        with pytest.raises(UsageError, match=f"mode {mode:04o}.*0440"):
            check_secret_files(config)
        for mounted in (0o400, 0o440, 0o640):
            secret.chmod(mounted)
            check_secret_files(config)


def test_a_token_file_that_others_may_read_stops_the_start(tmp_path: Path) -> None:
    start(tmp_path, broker__listen="127.0.0.1:0", security__auth="tokens")
    (tmp_path / "admin.token").chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        start(tmp_path, broker__listen="127.0.0.1:0", security__auth="tokens")
