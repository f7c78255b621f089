"""Prometheus itself, with the rules and the queries of the dashboard, on a node with traffic."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.support.api.calls import publish, receive, settle
from tests.support.eventually import eventually
from tests.support.node.ports import HOST, free_port
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import DOCS, REPOSITORY

RULES = REPOSITORY / "deploy/prometheus/alerts.yaml"
DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy/grafana/goq.json").read_text())
VARIABLES = {"job": "goq", "instance": ".*", "topic": ".*", "group": ".*", "__rate_interval": "1m"}
WITHOUT_VALUES = {
    "goq_tls_certificate_expiry_seconds",
    "goq_cluster_certificate_expiry_seconds",
    "goq_backup_age_seconds",
    "goq_replica_lag_max_seconds",
    "goq_quota_refusals_total",
    "goq_loop_stall_seconds",
    "goq_cluster_clock_skew_seconds",
}
"""Metrics that a node alone has not, without TLS, tokens, backups and stalls."""


class Prometheus:
    """A server, asked over its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **fields: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urlencode(fields)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def values(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def is_up(self) -> bool:
        try:
            return len(self.values('up{job="goq"} == 1')) == 1
        except OSError:
            return False


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        for topic in ("orders", "dying"):
            running.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
            path = f"/v1/topics/{topic}/groups/billing"
            running.call("PUT", path, {"settings": {"ordering": "none"}})
        yield running


@pytest.fixture(scope="module")
def prometheus(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration that the docs show, only faster."""
    if shutil.which("prometheus") is None:
        pytest.skip("there is no Prometheus here")
    folder = tmp_path_factory.mktemp("prometheus")
    config = documented()
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [":".join(map(str, node.address))]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(RULES, folder / RULES.name)
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                "--config.file=prometheus.yaml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={HOST}:{port}",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(f"http://{HOST}:{port}")
        eventually(server.is_up, (folder / "log").read_text(), seconds=60, pause_s=0.2)
        yield server
    finally:
        process.kill()
        process.wait()


def documented() -> dict[str, Any]:
    page = (DOCS / "metrics.md").read_text()
    found: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    assert found["rule_files"] == [Path(RULES).name]
    return found


def work(node: RunningNode) -> None:
    """Let most things happen once."""
    publish(node, "orders", "a", "b", "c", "d", priority="high", tenant="acme")
    first, second, third = receive(node, "orders", "billing", max_messages=3)
    settle(node, "orders", "ack", first["receipt"], group="billing")
    settle(node, "orders", "nack", second["receipt"], group="billing", delay="1h")
    settle(node, "orders", "reject", third["receipt"], group="billing", reason="bad")


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])


def test_the_dashboard_shows_the_traffic(node: RunningNode, prometheus: Prometheus) -> None:
    wanted = list(queries())
    filled = [re.sub(r"\$(\w+)", lambda name: VARIABLES[name[1]], query) for query in wanted]

    lacking: set[str] = set()

    def is_shown() -> bool:
        work(node)
        empty = {query for query in filled if not prometheus.values(query)}
        lacking.clear()
        lacking.update(name for query in empty for name in re.findall(r"\bgoq_\w+", query))
        return lacking <= WITHOUT_VALUES

    assert len(filled) > 40
    eventually(is_shown, "each panel shows something", seconds=60, pause_s=1)


def test_the_rules_are_evaluated_and_a_fault_fires(
    node: RunningNode, prometheus: Prometheus
) -> None:
    count = len(yaml.safe_load(RULES.read_text())["groups"][0]["rules"])
    publish(node, "dying", "a")
    eventually(
        lambda: [rule["health"] for rule in prometheus.rules()] == ["ok"] * count,
        "all rules are evaluated",
        pause_s=0.2,
    )
    quiet = 'goq_group_dead_messages_total{topic="dying"} == 0'
    eventually(lambda: prometheus.values(quiet), "the group is seen", pause_s=0.2)
    (message,) = receive(node, "dying", "billing", max_messages=1)
    settle(node, "dying", "reject", message["receipt"], group="billing", reason="card declined")

    def told() -> list[str]:
        return [
            alert["annotations"]["summary"]
            for alert in prometheus.get("alerts")["alerts"]
            if alert["state"] == "firing" and alert["labels"].get("topic") != "orders"
        ]

    eventually(told, "the alert fires", pause_s=0.2)
    assert told() == ["dying/billing: it gave up messages"]
