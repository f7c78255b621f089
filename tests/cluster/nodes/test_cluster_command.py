"""``goq cluster`` on a real cluster that grows and shrinks, and how trouble is shown."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goq.client.results.cluster import decode_cluster
from goq.cluster.liveness.readiness import Readiness
from goq_cli.output.cluster import is_degraded, print_cluster, summary
from tests.support.cli.command import Run
from tests.support.cluster.running_cluster import RunningCluster, new_cluster
from tests.support.eventually import eventually

WELL: dict[str, Any] = {
    "version": 9,
    "node": "n1",
    "cluster": True,
    "controller": "n1",
    "diverged": False,
    "feature_level": 1,
    "nodes": [
        {"id": "n1", "url": "http://n1", "status": "up", "incarnation": 1},
        {"id": "n2", "url": "http://n2", "status": "leaving", "incarnation": 1},
    ],
    "settings": {
        "replication_factor": 2,
        "min_insync": 2,
        "moves_at_once": 1,
        "move_bytes_per_s": 0,
    },
    "topics": [
        {
            "name": "t",
            "partitions": [
                {
                    "partition": 0,
                    "leader": "n1",
                    "leader_epoch": 3,
                    "replicas": ["n1", "n2"],
                    "in_sync": ["n1", "n2"],
                    "offline": False,
                    "wanted": 2,
                    "followers": [{"node": "n2", "lag_messages": 7, "lag_s": 1.5}],
                }
            ],
        }
    ],
    "under_replicated": [],
    "offline": [],
    "moves": [
        {
            "topic": "t",
            "partition": 0,
            "replicas": ["n1", "n2"],
            "target": ["n1", "n3"],
            "state": "copying",
            "progress": 0.25,
        }
    ],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with new_cluster(Path(tmp_path_factory.mktemp("cluster"))) as some:
        some.start("n1")
        eventually(lambda: some.statuses("n1") == {"n1": "up"})
        some.start("n2", via="n1")
        eventually(lambda: some.statuses("n1") == {"n1": "up", "n2": "up"})
        yield some


@pytest.fixture
def run(goq: Run, cluster: RunningCluster) -> Run:
    """Run ``goq`` on the cluster's first node."""

    def on_first(*arguments: str, **more: Any) -> Any:
        return goq(*arguments, GOQ_SERVER=cluster.by_name["n1"].url, **more)

    return on_first


def test_a_cluster_is_shown_grown_moved_and_shrunk(
    run: Run, cluster: RunningCluster, topic: str
) -> None:
    run("cluster", "set", "replication_factor=2")
    run("topic", "create", topic, "--partitions", "2")
    eventually(lambda: json.loads(run("cluster", "status", "--json").stdout)["topics"])
    shown = run("cluster", "status", "--partitions").stdout.decode()
    assert shown.startswith("ok: 2 nodes, controller n1, 2 partitions\n")
    assert f"{topic}:1" in shown
    assert run("cluster", "nodes").stdout.decode().count("\tup\t") == 2

    told = run("cluster", "join").stdout.decode()
    assert f"--join {cluster.by_name['n1'].url}" in told
    assert "--set" not in told
    cluster.start("n3", via="n1")
    cluster.until(lambda: cluster.cluster_node("n3").readiness.pending() == [])
    eventually(lambda: cluster.statuses("n1").get("n3") == "up")
    planned = json.loads(run("cluster", "rebalance", "--dry-run", "--json").stdout)
    assert planned["dry_run"]
    assert planned["moves"]
    run("cluster", "move", topic, "0", "--to", "n3,n1")
    eventually(lambda: _partition(run, 0)["replicas"] == ["n3", "n1"])
    run("cluster", "elect", topic, "1", "--leader", _partition(run, 1)["replicas"][1])

    left = run("cluster", "leave", "n3", "--json")
    assert json.loads(left.stdout) == {"left": "n3"}
    assert set(cluster.statuses("n2")) == {"n1", "n2"}


@pytest.mark.long
def test_a_rebalance_is_not_done_while_moves_are_planned(
    run: Run, cluster: RunningCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    run("topic", "create", topic, "--partitions", "6", "--replication-factor", "2")
    lines = b"\n".join(b"%1000d" % number for number in range(50))
    for partition in range(6):  # the copy of each takes its time
        run("produce", topic, "--partition", str(partition), stdin=lines)
    run("cluster", "set", "move_bytes_per_s=1KB", "moves_at_once=1")
    cluster.start("n4", via="n1")
    cluster.until(lambda: cluster.cluster_node("n4").readiness.pending() == [])
    eventually(lambda: cluster.statuses("n1").get("n4") == "up")
    assert "does not follow the cluster" not in caplog.text  # it registers with its level at once
    started = run("cluster", "rebalance")
    assert b"until they are done, goq cluster status says moving" in started.stdout
    again = run("cluster", "rebalance")
    assert b"these moves are not done yet" in again.stdout
    assert topic.encode() in again.stdout
    assert run("cluster", "status").stdout.startswith(b"moving: ")
    run("cluster", "set", "move_bytes_per_s=0", "moves_at_once=4")
    cluster.until(lambda: run("cluster", "status").stdout.startswith(b"ok: "))
    assert run("cluster", "rebalance").stdout == b""
    run("cluster", "leave", "n4")
    cluster.stop("n4")


def _partition(run: Run, number: int) -> dict[str, Any]:
    state = json.loads(run("cluster", "status", "--json").stdout)
    found: dict[str, Any] = state["topics"][0]["partitions"][number]
    return found


def test_what_is_refused_ends_with_its_code(run: Run) -> None:
    assert b"no node 'n9'" in run("cluster", "leave", "n9", code=3).stderr
    assert b"1 to 7" in run("cluster", "set", "min_insync=8", code=7).stderr
    assert b"no setting" in run("cluster", "set", "min_in_sync=1", code=2).stderr
    assert b"--to" in run("cluster", "move", "t", "0", code=2).stderr
    run("cluster", "elect", "none", "0", code=3)


def test_the_doctor_tells_of_a_node_that_waits_for_its_cluster(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("doctor").stdout.endswith(b": ok\n")
    monkeypatch.setattr(Readiness, "pending", lambda _self: ["a controller"])
    told = run("doctor", code=1).stdout.decode()
    assert told.endswith(": unavailable\nwaits for a controller\n")
    answer = json.loads(run("doctor", "--json", code=1).stdout)
    assert (answer["status"], answer["waits_for"]) == ("unavailable", ["a controller"])


def test_a_rate_is_a_size_and_the_other_settings_are_whole_numbers(run: Run) -> None:
    shown = json.loads(run("cluster", "set", "move_bytes_per_s=50MB", "--json").stdout)
    assert shown["move_bytes_per_s"] == 50_000_000
    run("cluster", "set", "move_bytes_per_s=0")
    for count in ("1.5", "1KiB", "x"):
        told = run("cluster", "set", f"min_insync={count}", code=7).stderr.decode()
        assert f"'{count}' is not a whole number (min_insync)" in told


def test_a_node_of_its_own_says_so(goq: Run) -> None:
    assert b"is on its own" in goq("cluster", "status").stdout
    assert b"on its own" in goq("cluster", "rebalance", code=6).stderr
    assert b"on its own" in goq("cluster", "join", code=6).stderr


def test_a_move_and_a_leaving_node_are_no_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_degraded(decode_cluster(WELL))
    print_cluster(decode_cluster(WELL), all_partitions=True)
    shown = capsys.readouterr().out
    assert "moving: 2 nodes, controller n1, 1 partitions, 1 moving" in shown
    assert "t:0\tn1\tn1,n2\tn1,n2\tn2:7\tn2:1.5 s\t" in shown
    assert "t:0\tn1,n2\tn1,n3\tcopying 25%" in shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"controller": None, "unheard_s": 12.34}, "NO CONTROLLER, as of 12 s ago"),
        ({"controller": None}, "NO CONTROLLER, as of before the start of n1"),
        ({"absent": [{"id": "n3", "address": "h:1"}]}, "never came: n3"),
        ({"controller": None, "nodes": []}, "NO CONTROLLER, 1 partitions"),
        ({"diverged": True}, "METADATA OF n1 DIFFERS, BEING REPLACED"),
        ({"offline": ["t:0"]}, "1 offline"),
        ({"under_replicated": ["t:0"]}, "1 under-replicated"),
        ({"nodes": [{"id": "n1", "url": "", "status": "fenced"}]}, "1 nodes"),
        ({"nodes": [{"id": "n1", "url": "", "status": "unfit", "reason": "full"}]}, "1 nodes"),
    ],
)
def test_trouble_is_said_in_the_first_line(change: dict[str, Any], said: str) -> None:
    degraded = copy.deepcopy(WELL) | change
    assert is_degraded(decode_cluster(degraded))
    assert summary(decode_cluster(degraded)).startswith("degraded: ")
    assert said in summary(decode_cluster(degraded))


def test_a_damaged_or_offline_partition_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    degraded = copy.deepcopy(WELL)
    partition = degraded["topics"][0]["partitions"][0]
    partition |= {"leader": None, "offline": True, "damaged": ["n2"], "in_sync": ["n1"]}
    print_cluster(decode_cluster(degraded), all_partitions=False)
    shown = capsys.readouterr().out
    assert is_degraded(decode_cluster(degraded))
    assert "t:0\tnone\tn1,n2\tn1\t" in shown
    assert "offline, under-replicated (1 of 2), damaged on n2" in shown


def test_without_moves_it_is_ok_and_a_planned_one_is_not() -> None:
    still = WELL | {"moves": [], "nodes": WELL["nodes"][:1]}
    assert summary(decode_cluster(still)).startswith("ok: ")
    planned = [WELL["moves"][0] | {"state": "waiting"}]
    assert summary(decode_cluster(still | {"moves": planned})).startswith("moving: ")


def test_a_node_that_never_came_is_listed_with_its_address_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    absent = [
        {"id": "n3", "address": "h:1", "reason": "has another secret than n1"},
        {"id": "n4", "address": "h:2"},
    ]
    print_cluster(decode_cluster(WELL | {"absent": absent}), all_partitions=False)
    shown = capsys.readouterr().out
    assert "n3\tnever came: has another secret than n1\th:1\t" in shown
    assert "n4\tnever came\th:2\t" in shown


def test_a_clock_that_is_off_is_warned_of_and_degrades_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    skews_s = {"n1": 0.2, "n2": -0.3, "n3": 3.21, "n4": None}
    nodes = [
        {"id": name, "url": "http://n", "status": "up", "incarnation": 1, "clock_skew_s": skew_s}
        for name, skew_s in skews_s.items()
    ]
    cluster = decode_cluster({**WELL, "nodes": nodes})
    print_cluster(cluster, all_partitions=False)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("warning")] == [
        "warning: the clock of n2 is 0.3 s behind the median",
        "warning: the clock of n3 is 3.2 s ahead of the median",
    ]
    assert not is_degraded(cluster)
