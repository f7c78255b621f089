"""The alert rules: every metric that they name exists, and the docs say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.support.paths import REPOSITORY

FILE = REPOSITORY / "deploy/prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
PAGE = (REPOSITORY / "docs/metrics.md").read_text()
METRIC = re.compile(r"\bgoq_\w+")
KNOWN = set(METRIC.findall(PAGE.partition("## Alerts")[0]))


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_names_metrics_that_exist_and_the_docs_say_what_to_do(
    rule: dict[str, Any],
) -> None:
    named = {name.removesuffix("_bucket") for name in METRIC.findall(rule["expr"])}
    assert named <= KNOWN
    assert named or rule["expr"].startswith("up{")
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert rule["labels"]["severity"] in ("page", "ticket")
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{rule['alert']}` ("))
    assert rule["annotations"]["description"] in row


def test_no_alert_is_there_twice() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", FILE], check=True, capture_output=True)
