"""The Grafana dashboard: what it names exists, and it can be imported anywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.paths import REPOSITORY

DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy/grafana/goq.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
PAGE = (REPOSITORY / "docs/metrics.md").read_text()
KNOWN = set(re.findall(r"`((?:goq|process)_\w+)`", PAGE.partition("## Alerts")[0]))
METRIC = re.compile(r"\b(?:goq|process)_\w+")
VARIABLES = {each["name"] for each in DASHBOARD["templating"]["list"]}


def queries() -> Iterator[str]:
    for panel in GRAPHS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (each["expr"] for each in DASHBOARD["annotations"]["list"])


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_names_metrics_and_variables_that_exist(query: str) -> None:
    named = {name.removesuffix("_bucket") for name in METRIC.findall(query)}
    assert named or "up{" in query
    assert named <= KNOWN
    assert set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"} <= VARIABLES
    for left, right in ("()", "{}", "[]"):
        assert query.count(left) == query.count(right)


def test_no_panel_lies_over_another() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        taken = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        cells |= taken
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_a_dashboard_can_be_imported_beside_any_prometheus() -> None:
    sources = {panel["datasource"]["uid"] for panel in GRAPHS}
    sources |= {target["datasource"]["uid"] for panel in GRAPHS for target in panel["targets"]}
    assert sources == {"${source}"}
    assert "id" not in DASHBOARD
