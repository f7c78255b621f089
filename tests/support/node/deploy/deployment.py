"""What the files in ``deploy/`` tell each node, and nodes that run on this machine as they say.

Nothing here needs a container: an image is its ``ENV`` and ``CMD``, a container these and what its
service or its pod adds. Hosts and folders are then those of the test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from goq.config.node import Config
from goq_cli.main import build_app
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.node_process import NodeProcess
from tests.support.node.ports import reserved_port
from tests.support.paths import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
READY_S_MAX = 60.0
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_ADDRESS = re.compile(r"([A-Za-z0-9.-]+):(8080|9080)\b")


class Instruction(NamedTuple):
    """A line of a Dockerfile: its keyword, and the rest with lines joined."""

    keyword: str
    rest: str


class Told(NamedTuple):
    """What a node is started with; the others know it as ``host``."""

    host: str
    arguments: list[str]
    environment: dict[str, str]


def instructions() -> list[Instruction]:
    """Return what the Dockerfile says, without comments."""
    lines = [li for li in DOCKERFILE.read_text().splitlines() if not li.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [Instruction(keyword, rest.strip()) for keyword, _, rest in found]


def image_environment() -> dict[str, str]:
    """Return the variables of the image."""
    words = [w for i in instructions() if i.keyword == "ENV" for w in shlex.split(i.rest)]
    return dict(word.split("=", 1) for word in words)


def image_arguments() -> list[str]:
    """Return what the image gives ``goq`` to do, unless it is told otherwise."""
    (command,) = [i.rest for i in instructions() if i.keyword == "CMD"]
    arguments: list[str] = json.loads(command)
    return arguments


def compose() -> dict[str, Any]:
    """Return the Compose file, read."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    return found


def compose_nodes() -> list[Told]:
    """Return what each service's node is told."""
    return [
        Told(
            name,
            service.get("command", image_arguments()),
            image_environment() | service["environment"],
        )
        for name, service in compose()["services"].items()
    ]


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the Kustomization lists, by kind and name."""
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    documents = [d for name in listed for d in yaml.safe_load_all((folder / name).read_text())]
    return {(d["kind"], d["metadata"]["name"]): d for d in documents}


def kubernetes_nodes(count: int) -> list[Told]:
    """Return what the first so many pods of the StatefulSet are told."""
    (stateful,) = [d for (kind, _), d in manifests().items() if kind == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    found = []
    for number in range(count):
        pod = f"{stateful['metadata']['name']}-{number}"
        environment = image_environment() | _expanded(container["env"], pod)
        host = f"{pod}.{stateful['spec']['serviceName']}"
        found.append(Told(host, container["args"], environment))
    return found


_FIELDS = {"metadata.name": "", "metadata.namespace": "default"}


def _expanded(entries: Sequence[Mapping[str, Any]], pod: str) -> dict[str, str]:
    """Return the variables of a pod; a reference is to one that stands before it."""
    found: dict[str, str] = {}
    for entry in entries:
        if "valueFrom" in entry:
            found[entry["name"]] = _FIELDS[entry["valueFrom"]["fieldRef"]["fieldPath"]] or pod
        else:
            found[entry["name"]] = _REFERENCE.sub(lambda m: found[m[1]], entry["value"])
    return found


def config_of(
    arguments: Sequence[str], environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> Config:
    """Return what ``goq`` makes of its arguments and its environment, by its own command line."""
    loaded: list[Config] = []
    with monkeypatch.context() as patched:
        for name in [name for name in os.environ if name.upper().startswith("GOQ_")]:
            patched.delenv(name)
        for name, value in environment.items():
            if name.startswith("GOQ_"):
                patched.setenv(name, value)
        patched.setattr("goq.process.run.run", lambda load, _ready: loaded.append(load()))
        build_app(["serve"])(list(arguments), standalone_mode=False)
    return loaded[0]


class DeployedNode(NodeProcess):
    """A node of a deployment, in a process on this machine."""

    def __init__(self, told: Told, port: int, folder: Path) -> None:
        super().__init__(
            folder / f"data-{told.host}",
            port=port,
            arguments=told.arguments,
            environment=told.environment,
        )
        self.told = told

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> Answer:
        """Send one request, with the token of the node's data folder once there is one."""
        sent = dict(headers or {})
        token = Path(self.told.environment["GOQ_BROKER__DATA_DIR"]) / "admin.token"
        if token.exists():
            sent["Authorization"] = f"Bearer {token.read_text().strip()}"
        return super().request(method, path, body, sent, timeout_s=timeout_s)

    def wait_ready(self) -> None:
        """Return when the node answers a probe of its readiness."""
        super().wait_ready()
        eventually(self._is_ready, f"{self.told.host} is ready", seconds=READY_S_MAX)

    def _is_ready(self) -> bool:
        assert self.is_running, self.log_text()
        return self.request("GET", "/readyz").status == 200


@contextmanager
def on_this_machine(nodes: Sequence[Told], folder: Path) -> Iterator[list[DeployedNode]]:
    """Make nodes that can be started here: each with ports and a data folder of the test's."""
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text("5" * 64)
    with ExitStack() as held:
        ports = {
            (told.host, port): held.enter_context(reserved_port())
            for told in nodes
            for port in ("8080", "9080")
        }
        found = []
        for told in nodes:
            environment = {n: _moved(v, told.host, ports) for n, v in told.environment.items()}
            environment["GOQ_BROKER__DATA_DIR"] = str(folder / f"data-{told.host}")
            environment["GOQ_CLUSTER__SECRET_FILE"] = str(secret)
            environment["PATH"] = os.environ["PATH"]
            moved = told._replace(environment=environment)
            found.append(DeployedNode(moved, ports[told.host, "8080"], folder))
            held.callback(found[-1].close)
        yield found


def _moved(value: str, host: str, ports: Mapping[tuple[str, str], int]) -> str:
    """Return a variable with the addresses of nodes replaced by those they have here."""

    def replaced(match: re.Match[str]) -> str:
        named = host if match[1] == "0.0.0.0" else match[1]
        return f"127.0.0.1:{ports[named, match[2]]}"

    return _ADDRESS.sub(replaced, value)
