"""Schedules of a node: over HTTP, over restarts and crashes, and with tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from goq.broker.metadata import LocalMetadata
from goq.errors import Unavailable
from goq.schedules.schedule_record import ScheduleRun
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

HOURLY = {"topic": "orders", "every": "1h", "messages": [{"value": "v", "key": "k"}]}
HOUR_MS = 3_600_000
PATH = "/v1/schedules/hourly"


def log(node: RunningNode) -> list[dict[str, Any]]:
    """The messages of all partitions, by their due times."""
    found = node.request("GET", "/v1/topics/orders")
    if found.status == 404:
        return []
    messages = []
    for partition in found.json["partitions"]:
        path = f"/v1/topics/orders/messages?partition={partition['partition']}"
        messages += node.call("GET", path)["messages"]
    return sorted(messages, key=lambda message: message["headers"]["goq-schedule-due"])


def pass_hours(node: RunningNode, hours: int) -> None:
    """Let hours pass, and have the node look at its clock."""
    node.clock.ahead_ms += hours * HOUR_MS
    assert node.node.app is not None
    node.on_loop(node.node.app.schedules.wake)


def has_run(node: RunningNode, before: str | None = None) -> bool:
    last = node.call("GET", PATH).get("last")
    return last is not None and last != before


def test_a_schedule_publishes_at_its_times_and_says_when() -> None:
    with running_node() as node:
        made = node.request("PUT", PATH, HOURLY)
        assert made.status == 201
        assert node.request("PUT", PATH, HOURLY).json == made.json
        other = node.request("PUT", PATH, {**HOURLY, "every": "2h"})
        assert (other.status, other.json["code"]) == (409, "schedule_exists")
        pass_hours(node, 1)
        eventually(lambda: has_run(node))
        (message,) = log(node)
        due = made.json["next"]
        assert message["headers"] == {"goq-schedule": "hourly", "goq-schedule-due": due}
        assert (message["value"], message["key"]) == ("v", "k")
        shown = node.call("GET", PATH)
        assert shown["last"] == due
        assert shown["next"] > due
        assert node.call("GET", "/v1/schedules") == {"schedules": [shown]}


def test_a_paused_schedule_waits_over_a_restart_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("PUT", PATH, HOURLY)
        node.call("PUT", "/v1/schedules/gone", HOURLY)
        paused = node.call("POST", f"{PATH}/pause")
        assert "next" not in paused
        assert node.request("DELETE", "/v1/schedules/gone").status == 204
        assert node.request("DELETE", "/v1/schedules/gone").status == 404
    with running_node(tmp_path) as node:
        assert node.call("GET", "/v1/schedules") == {"schedules": [paused]}
        pass_hours(node, 3)
        resumed = node.call("POST", f"{PATH}/resume")
        assert resumed["created"] < resumed["next"]
        pass_hours(node, 1)
        eventually(lambda: has_run(node))
        assert [m["headers"]["goq-schedule-due"] for m in log(node)] == [resumed["next"]]


def test_an_outage_is_made_up_for_once(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("PUT", PATH, HOURLY)
    with running_node(tmp_path) as node:
        pass_hours(node, 5)
        eventually(lambda: has_run(node))
        assert len(log(node)) == 1


def test_a_time_whose_run_was_not_recorded_gives_no_second_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_self: LocalMetadata, _runs: Mapping[str, ScheduleRun]) -> None:
        raise Unavailable("killed before this")

    with running_node(tmp_path) as node, monkeypatch.context() as patch:
        patch.setattr(LocalMetadata, "record_runs", failing)
        due = node.call("PUT", PATH, HOURLY)["next"]
        pass_hours(node, 1)
        eventually(lambda: log(node))
        assert not has_run(node)
    with running_node(tmp_path) as node:
        pass_hours(node, 1)
        eventually(lambda: has_run(node))
        assert node.call("GET", PATH)["last"] == due
        assert len(log(node)) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"every": "1ms"}, "every"),
        ({"every": 0}, "every"),
        ({"every": None}, "cron"),
        ({"cron": "* * * * *"}, "cron"),
        ({"tz": "UTC"}, "tz"),
        ({"every": None, "cron": "* * *"}, "cron"),
        ({"every": None, "cron": "* * * * *", "tz": "Mars"}, "tz"),
        ({"topic": "__audit"}, "topic"),
        ({"topic": ".x"}, "topic"),
        ({"messages": []}, "messages"),
        ({"messages": [{"value": "v"}] * 101}, "messages"),
        ({"messages": [{"key": "k"}]}, "messages[0]"),
        ({"messages": [{"value": "v", "value_base64": "dg=="}]}, "messages[0]"),
        ({"messages": [{"value": "v", "delay": "1s"}]}, "messages[0]"),
        ({"messages": [{"value": "v", "ttl": "0s"}]}, "messages[0].ttl"),
        ({"messages": [{"value": "v"}, {"value": "v", "ttl": "soon"}]}, "messages[1].ttl"),
        ({"messages": [{"value": "x" * 9000}]}, "messages"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_field_at_fault(
    node: RunningNode, change: dict[str, Any], field: str
) -> None:
    answer = node.request("PUT", PATH, {**HOURLY, **change})
    assert (answer.status, answer.json["field"]) == (400, field)
    assert node.request("GET", PATH).status == 404


def test_a_lane_that_the_topic_does_not_have_is_refused() -> None:
    with running_node() as node:
        node.call("POST", "/v1/topics", {"name": "orders"})
        messages = [{"value": "v", "priority": "high"}, {"value": "v", "priority": "nope"}]
        answer = node.request("PUT", PATH, {**HOURLY, "messages": messages})
        assert (answer.status, answer.json["field"]) == (400, "messages[1].priority")
        assert node.request("PUT", PATH, {**HOURLY, "messages": messages[:1]}).status == 201


def test_a_refused_publish_is_shown_as_the_problem() -> None:
    with running_node() as node:
        node.call("PUT", PATH, {**HOURLY, "messages": [{"value": "v", "priority": "nope"}]})
        pass_hours(node, 1)
        eventually(lambda: has_run(node))
        assert "no lane 'nope'" in node.call("GET", PATH)["problem"]


def test_a_schedule_may_do_what_the_token_that_created_it_may() -> None:
    with running_node(security={"auth": "tokens"}) as node:
        admin = {"Authorization": f"Bearer {(node.data_dir / 'admin.token').read_text().strip()}"}

        def token(*rules: str) -> tuple[str, dict[str, str]]:
            body = {"name": "t", "allow": rules}
            made = node.request("POST", "/v1/tokens", body, admin).json
            return made["id"], {"Authorization": f"Bearer {made['token']}"}

        mine, sender = token("manage:orders", "publish:orders")
        _, stranger = token("manage:mails", "publish:mails")
        for rules in ("manage:orders", "publish:orders"):
            assert node.request("PUT", PATH, HOURLY, token(rules)[1]).status == 403
        assert node.request("PUT", PATH, HOURLY, stranger).status == 404
        assert node.request("PUT", PATH, HOURLY, sender).status == 201
        assert node.request("GET", "/v1/schedules", None, stranger).json == {"schedules": []}
        for method, path in (("GET", ""), ("POST", "/pause"), ("DELETE", "")):
            refused = node.request(method, PATH + path, None, stranger)
            assert refused.status == 404
            assert "orders" not in str(refused.json)
        assert node.request("POST", f"{PATH}/pause", None, token("read:orders")[1]).status == 403
        pass_hours(node, 1)

        def shown() -> Any:
            return node.request("GET", PATH, None, admin).json

        eventually(lambda: "last" in shown())
        first = shown()
        assert "problem" not in first
        node.request("DELETE", f"/v1/tokens/{mine}", None, admin)
        pass_hours(node, 1)
        eventually(lambda: shown()["last"] != first["last"])
        assert "was revoked" in shown()["problem"]
        records = node.request("GET", "/v1/audit", None, admin).json["records"]
        routes = [each["path"] for each in records if each["result"] == "allowed"]
        assert PATH in routes
