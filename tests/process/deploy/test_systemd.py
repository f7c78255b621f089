"""The unit: systemd takes it, goq takes what it says, and it leaves time to drain."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from goq import limits
from goq.config.node import Config
from tests.support.node.deploy.deployment import DEPLOY, REPOSITORY, config_of

FOLDER = DEPLOY / "systemd"
UNIT = FOLDER / "goq.service"
DROP_IN = FOLDER / "goq.service.d" / "cluster.conf"
INSTALLED_CONFIG = "/etc/goq/goq.yaml"
systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def settings(path: Path) -> dict[str, list[str]]:
    """What a unit file says, by name, without its sections."""
    lines = [line for line in path.read_text().splitlines() if re.match(r"\w+=", line)]
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition("=")
        found.setdefault(name, []).append(value)
    return found


def loaded(config: str, monkeypatch: pytest.MonkeyPatch, *, drop_in: bool) -> Config:
    """What goq makes of the unit's command line with a configuration in the place of its own."""
    _, *arguments = settings(UNIT)["ExecStart"][0].split()
    assert INSTALLED_CONFIG in arguments
    arguments = [str(FOLDER / config) if a == INSTALLED_CONFIG else a for a in arguments]
    said = settings(DROP_IN)["Environment"] if drop_in else []
    environment = dict(line.replace("%d", "/run/credentials/x").split("=", 1) for line in said)
    return config_of(arguments, environment, monkeypatch)


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_goq_takes_the_configuration_of_a_node_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded("goq.yaml", monkeypatch, drop_in=False)
    assert not config.cluster.is_member
    assert config.broker.data_dir == Path("/var/lib") / settings(UNIT)["StateDirectory"][0]


def test_goq_takes_the_configuration_of_a_member_with_the_secret_from_its_drop_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = loaded("goq-cluster.yaml", monkeypatch, drop_in=True)
    name = config.broker.node_id
    assert config.cluster.address_of(name) == config.cluster.listen
    assert len(config.cluster.peers) == 3
    assert config.broker.data_dir == Path("/var/lib") / settings(UNIT)["StateDirectory"][0]
    credential, _, source = settings(DROP_IN)["LoadCredential"][0].partition(":")
    assert config.cluster.secret_file == Path("/run/credentials/x") / credential
    assert source in (DEPLOY / "README.md").read_text()


def test_a_node_that_is_stopped_has_the_time_to_drain_and_one_that_fails_comes_back() -> None:
    said = settings(UNIT)
    assert said["KillSignal"] == ["SIGTERM"]
    assert seconds(said["TimeoutStopSec"][0]) * 1000 > 3 * limits.DRAIN_TIMEOUT_MS
    assert said["Restart"] == ["on-failure"]
    assert said["StartLimitIntervalSec"] == ["0"]


def test_a_node_may_open_files_for_all_connections_and_partitions_at_once() -> None:
    (most,) = settings(UNIT)["LimitNOFILE"]
    files_of_partitions = 4 * limits.CLUSTER_PARTITIONS_MAX
    assert int(most) > limits.CONNECTIONS_MAX + files_of_partitions + limits.OPEN_FILES_MAX


def copied_unit(tmp_path: Path) -> Path:
    """The unit and its drop-in with a program that is there on this machine."""
    unit = tmp_path / UNIT.name
    program = settings(UNIT)["ExecStart"][0].split()[0]
    here = shutil.which("true")
    assert here
    unit.write_text(UNIT.read_text().replace(program, here))
    (tmp_path / DROP_IN.parent.name).mkdir()
    shutil.copy(DROP_IN, tmp_path / DROP_IN.parent.name)
    return unit


@systemd_analyze
def test_systemd_takes_the_unit_with_its_drop_in(tmp_path: Path) -> None:
    unit = copied_unit(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    about_it = [line for line in done.stderr.splitlines() if "goq" in line]
    assert (done.returncode, about_it) == (0, [])


@systemd_analyze
def test_systemd_finds_little_that_the_unit_could_still_do(tmp_path: Path) -> None:
    unit = copied_unit(tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-500:]


def test_the_documentation_installs_every_file_of_the_folder() -> None:
    readme = (DEPLOY / "README.md").read_text()
    for path in FOLDER.rglob("*"):
        if path.is_file():
            assert str(path.relative_to(REPOSITORY)) in readme
