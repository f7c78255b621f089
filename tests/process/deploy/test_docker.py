"""The image and the Compose file: what they build from, tell goq, keep and check."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from goq import __version__, limits
from tests.support.node.deploy.deployment import (
    DEPLOY,
    DOCKERFILE,
    REPOSITORY,
    compose,
    compose_nodes,
    config_of,
    image_arguments,
    image_environment,
    instructions,
    manifests,
)
from tests.support.node.deploy.routes import paths_of_a_node
from tests.support.node.node_process import clean_environment

FOLDER = DEPLOY / "docker"
KEYWORDS = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
SERVICE_KEYS = {
    *("image", "build", "restart", "stop_grace_period", "secrets", "read_only", "tmpfs"),
    *("cap_drop", "security_opt", "ulimits", "healthcheck", "environment", "ports", "volumes"),
}
_URL = re.compile(r"urlopen\('http://127\.0\.0\.1:(\d+)(/\w+)'")


def rests(keyword: str) -> list[str]:
    return [i.rest for i in instructions() if i.keyword == keyword]


def copied() -> list[Path]:
    """What the image takes from the repository."""
    words = [shlex.split(rest) for rest in rests("COPY")]
    return [REPOSITORY / w for line in words if not line[0].startswith("--") for w in line[:-1]]


def checked_by(command: list[str]) -> tuple[int, str]:
    """The port and path that a check asks for by a line of Python."""
    python, option, line = command
    assert (python, option) == ("python", "-c")
    ast.parse(line)
    found = _URL.search(line)
    assert found
    return int(found[1]), found[2]


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"]
    return found


def seconds(text: str) -> int:
    number, unit = int(text[:-1]), text[-1]
    return number * {"s": 1, "m": 60}[unit]


def test_the_dockerfile_has_two_stages_of_known_instructions_and_does_not_end_as_root() -> None:
    assert {i.keyword for i in instructions()} <= KEYWORDS
    build, final = rests("FROM")
    assert build.endswith(" AS build")
    assert build.split()[0] == final
    after = [i.keyword for i in instructions()]
    assert after.index("USER") > max(n for n, keyword in enumerate(after) if keyword == "RUN")
    user, _, group = rests("USER")[0].partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_image_runs_the_python_that_goq_needs() -> None:
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    needed = re.search(r'requires-python = ">=3\.(\d+)"', pyproject)
    given = re.fullmatch(r"python:3\.(\d+)-slim", rests("FROM")[-1])
    assert needed
    assert given
    assert int(given[1]) >= int(needed[1])


def test_no_registry_is_named() -> None:
    (stateful,) = [d for (kind, _), d in manifests().items() if kind == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    images = [rest.split()[0] for rest in rests("FROM")]
    images += [service["image"] for service in services().values()] + [container["image"]]
    assert not [image for image in images if "/" in image]
    assert not re.findall(r"https?://(?!127\.0\.0\.1)|index-url", DOCKERFILE.read_text())


def test_what_the_image_copies_exists_and_is_not_left_out_by_the_ignore_file() -> None:
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert lines[0] == "*"
    let_in = {REPOSITORY / line[1:] for line in lines if line.startswith("!")}
    assert set(copied()) == let_in
    assert all(path.exists() for path in copied())


def test_the_image_copies_all_that_the_package_consists_of() -> None:
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project, tools = pyproject["project"], pyproject["tool"]["setuptools"]
    (pattern,) = tools["packages"]["find"]["include"]
    needed = {REPOSITORY / "pyproject.toml", REPOSITORY / project["readme"]}
    needed |= {REPOSITORY / name for name in project["license-files"]}
    needed |= {REPOSITORY / f"{name}.py" for name in tools["py-modules"]}
    needed |= {path.parent for path in REPOSITORY.glob(f"{pattern}/__init__.py")}
    assert set(copied()) == needed
    assert rests("RUN")[1].endswith("pip install --no-cache-dir .")


def test_goq_runs_from_no_more_than_the_image_copies(tmp_path: Path) -> None:
    for path in copied():
        shutil.copytree(path, tmp_path / path.name) if path.is_dir() else shutil.copy(
            path, tmp_path
        )
    line = "import goq_cli.commands.serve, goq.node, goq.cluster.bootstrap as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", line],
        cwd=tmp_path,
        env=clean_environment(tmp_path) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_goq_takes_what_the_image_tells_it_and_listens_on_what_is_exposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert json.loads(rests("ENTRYPOINT")[0]) == ["goq"]
    config = config_of(image_arguments(), image_environment(), monkeypatch)
    assert not config.cluster.is_member
    assert config.broker.host == "0.0.0.0"
    assert config.asks_for_tokens
    assert rests("VOLUME") == [str(config.broker.data_dir)]
    assert str(config.broker.port) in rests("EXPOSE")[0].split()
    assert rests("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_is_checked_for_being_alive() -> None:
    options, _, command = rests("HEALTHCHECK")[0].partition("CMD ")
    assert "--timeout" in options
    port, path = checked_by(json.loads(command))
    assert path == "/livez"
    assert path in paths_of_a_node()
    assert str(port) in rests("EXPOSE")[0].split()


def test_goq_takes_what_each_service_is_told_and_all_are_the_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = compose_nodes()
    configs = [config_of(one.arguments, one.environment, monkeypatch) for one in told]
    assert [config.broker.node_id for config in configs] == list(services())
    for one, config in zip(told, configs, strict=True):
        listening = f"{one.host}:{config.cluster.address[1]}"
        assert config.cluster.peers.keys() == services().keys()
        assert config.cluster.address_of(one.host) == listening
        assert config.cluster.min_insync < len(configs)


def test_each_service_has_a_volume_of_its_own_the_secret_and_a_port_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = compose()
    assert set(document) <= {"name", "services", "volumes", "secrets", "x-node", "x-environment"}
    ports = []
    for name, service in services().items():
        (told,) = [one for one in compose_nodes() if one.host == name]
        config = config_of(told.arguments, told.environment, monkeypatch)
        assert set(service) <= SERVICE_KEYS
        assert service["volumes"] == [f"{name}:{config.broker.data_dir}"]
        assert name in document["volumes"]
        assert [f"/run/secrets/{s}" for s in service["secrets"]] == [
            str(config.cluster.secret_file)
        ]
        assert set(service["secrets"]) == set(document["secrets"])
        (port,) = service["ports"]
        host, outside, inside = port.split(":")
        assert (host, int(inside)) == ("127.0.0.1", config.broker.port)
        ports.append(outside)
    assert len(set(ports)) == len(services())


def test_the_secret_is_made_by_a_documented_command_and_kept_out_of_the_repository() -> None:
    file = compose()["secrets"]["cluster"]["file"]
    assert f"deploy/docker/{Path(file).name}" in (DEPLOY / "README.md").read_text()
    assert Path(file).name in (REPOSITORY / ".gitignore").read_text().split()


def test_a_service_is_healthy_when_it_has_caught_up_and_has_time_to_drain() -> None:
    for service in services().values():
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        port, path = checked_by(command)
        assert (port, path) == (8080, "/readyz")
        assert path in paths_of_a_node()
        assert seconds(service["stop_grace_period"]) * 1000 > 3 * limits.DRAIN_TIMEOUT_MS


def test_the_services_are_built_from_the_dockerfile_as_the_version_of_goq() -> None:
    for service in services().values():
        context = (FOLDER / service["build"]["context"]).resolve()
        assert context == REPOSITORY
        assert context / service["build"]["dockerfile"] == DOCKERFILE
        assert service["image"] == f"goq:{__version__}"
