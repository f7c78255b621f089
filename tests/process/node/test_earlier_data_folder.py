"""A data folder of the version before topics had ids is taken up as it is."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import Any

from goq.model import NATIVE_TOPIC_IDS
from tests.support.node.earlier_version import check_out
from tests.support.node.node_process import NodeProcess

BEFORE_TOPIC_IDS = "1cfdd2ced374"
"""A commit whose topics have no ids."""


def _publish(node: NodeProcess, *values: str) -> None:
    node.call("POST", "/v1/topics/t/messages", {"messages": [{"value": v} for v in values]})


def _receive(node: NodeProcess) -> list[dict[str, Any]]:
    asked = {"max_messages": 1, "visibility": "1h"}
    messages: list[dict[str, Any]]
    messages = node.call("POST", "/v1/topics/t/groups/g/receive", asked)["messages"]
    return messages


def _ack(node: NodeProcess, receipt: str) -> dict[str, Any]:
    answer: dict[str, Any]
    answer = node.call("POST", "/v1/topics/t/groups/g/ack", {"receipts": [receipt]})
    return answer


def test_topics_get_an_id_and_keep_messages_leases_and_folder(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        node.stop()
        rmtree(tmp_path / "data")
        node.environment.update(check_out(BEFORE_TOPIC_IDS, tmp_path / "earlier"))
        node.start()
        created = node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        assert "id" not in created, "not the earlier version"
        _publish(node, "first", "second", "third")
        (first,), (second,) = _receive(node), _receive(node)
        node.stop()
        node.environment.clear()
        node.start()
        topic_id = node.call("GET", "/v1/topics/t")["id"]
        assert 0 < int(topic_id, 16) < NATIVE_TOPIC_IDS
        assert (tmp_path / "data/topics/t/0").is_dir()
        assert _ack(node, first["receipt"]) == {"settled": 1, "failed": []}
        (third,) = _receive(node)
        assert third["value"] == "third"
        node.kill()
        node.start()
        assert node.call("GET", "/v1/topics/t")["id"] == topic_id

        node.call("DELETE", "/v1/topics/t")
        assert not (tmp_path / "data/topics/t").exists()
        anew = node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})["id"]
        assert int(anew, 16) >= NATIVE_TOPIC_IDS
        assert (tmp_path / f"data/topics/t~{anew}/0").is_dir()
        _publish(node, "new first", "new second", "new third")
        leased = [_receive(node), _receive(node), _receive(node)]
        for old in (first, second, third):
            assert _ack(node, old["receipt"])["failed"] == [
                {"receipt": old["receipt"], "code": "lease_lost"}
            ]
        for (message,) in leased:
            assert _ack(node, message["receipt"])["settled"] == 1
        assert node.call("GET", "/v1/topics/t/groups/g")["leased"] == 0
