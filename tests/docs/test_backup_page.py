"""The drill of docs/backup.md: a node and its folder are lost, and five commands bring all back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import goq
from goq.client import Client
from tests.support.paths import DOCS
from tests.support.storage.backup_source import SETTINGS, fill, view

PAGE = DOCS / "backup.md"
PLACE = "/backups/goq"


def drill(place: Path) -> list[list[str]]:
    """Return the commands of the drill without ``goq``, with another folder of backups."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert all(line.startswith("$ goq ") for line in block.splitlines())
    return [line.replace(PLACE, str(place)).split()[2:] for line in block.splitlines()]


def test_five_commands_bring_all_back(tmp_path: Path) -> None:
    place, data = tmp_path / "place", tmp_path / "goq-data"
    with goq.Node(data, settings=SETTINGS | {"backup.to": place}) as node, node.client() as q:
        fill(q)
        q.create_backup()
        before = view(q)
        q.publish("orders", b"after the backup")
    rmtree(data)
    *commands, serve = drill(place)
    assert len(commands) == 4
    program = [sys.executable, "-P", "-m", "goq_cli"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GOQ_")}
    for command in commands:
        done = subprocess.run(
            [*program, *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
    initial = ["--set", "defaults.delivery.backoff.initial=1ms", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*program, *serve, *initial],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            found = re.search(r"ready on (\S+),", running.stdout.readline())
            assert found is not None
            with Client(found[1]) as q:
                assert view(q) == before
        finally:
            running.terminate()
            running.wait(60)
