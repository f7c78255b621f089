"""The alert rules: every metric that they name exists, each fires, and the docs say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.paths import REPOSITORY

FILE = REPOSITORY / "deploy/prometheus/alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
PAGE = (REPOSITORY / "docs/metrics.md").read_text()
TABLES, _, ALERTS = PAGE.partition("## Alerts")
METRIC = re.compile(r"\b(?:goq|process)_\w+")
KNOWN = set(METRIC.findall(TABLES))
DAY_S = 86_400
MINUTES = 120


class Case(NamedTuple):
    """Series of a fault, the same without it, and what the alert says of the fault.

    Values are those of a minute each; the last goes on.
    """

    faulty: dict[str, str]
    well: dict[str, str]
    summary: str


NODE = '{job="goq",instance="n1"}'
TOPIC = '{job="goq",instance="n1",topic="orders"}'
GROUP = '{job="goq",instance="n1",topic="orders",group="billing"}'


def one(metric: str, labels: str, faulty: str, well: str, summary: str) -> Case:
    return Case({metric + labels: faulty}, {metric + labels: well}, summary)


def joined(labels: str, **more: str) -> str:
    return labels[:-1] + "".join(f',{name}="{value}"' for name, value in more.items()) + "}"


def leases(expired: int) -> dict[str, str]:
    return {
        f"goq_group_delivered_messages_total{GROUP}": f"0+100x{MINUTES}",
        f"goq_group_expired_messages_total{GROUP}": f"0+{expired}x{MINUTES}",
    }


def requests(failed: int) -> dict[str, str]:
    return {
        "goq_http_requests_total" + joined(NODE, status="200"): f"0+1000x{MINUTES}",
        "goq_http_requests_total" + joined(NODE, status="503"): f"0+{failed}x{MINUTES}",
    }


def commits(slow: int) -> dict[str, str]:
    name = "goq_commit_seconds_bucket"
    return {
        name + joined(NODE, le="0.25"): f"0+{100 - slow}x{MINUTES}",
        name + joined(NODE, le="0.5"): f"0+100x{MINUTES}",
        name + joined(NODE, le="+Inf"): f"0+100x{MINUTES}",
    }


def consumers(waiting: int) -> dict[str, str]:
    """Return a backlog on one node, and consumers that wait on another."""
    other = GROUP.replace("n1", "n2")
    return {
        f"goq_group_lag_messages{GROUP}": "7",
        f"goq_group_leased_messages{GROUP}": "0",
        f"goq_group_waiting_receives{GROUP}": "0",
        f"goq_group_lag_messages{other}": "0",
        f"goq_group_leased_messages{other}": "0",
        f"goq_group_waiting_receives{other}": str(waiting),
    }


CASES = {
    "GoqDown": one("up", NODE, "0", "1", "n1: the node does not answer Prometheus"),
    "GoqDiskFull": one(
        "goq_disk_full", NODE, "1", "0", "n1: the disk is full, publishes are refused"
    ),
    "GoqDiskFillsUp": one(
        "goq_disk_free_bytes",
        NODE,
        f"100000000-500000x{MINUTES}",
        f"100000000-1000x{MINUTES}",
        "n1: the disk is full within a day",
    ),
    "GoqPartitionOffline": one(
        "goq_partition_online",
        joined(TOPIC, partition="3"),
        "0",
        "1",
        "n1: orders:3 cannot be used",
    ),
    "GoqNoLeader": one(
        "goq_cluster_offline_partitions", NODE, "2", "0", "goq: 2 partitions have no leader"
    ),
    "GoqUnderReplicated": one(
        "goq_cluster_under_replicated_partitions",
        NODE,
        "2",
        "0",
        "goq: 2 partitions lack a replica, one more fault may stop publishing",
    ),
    "GoqLostData": one(
        "goq_partition_damaged_messages",
        joined(TOPIC, partition="3"),
        "1",
        "0",
        "n1: bytes of orders failed their check",
    ),
    "GoqReplicasRepaired": one(
        "goq_replica_repaired_frames_total",
        TOPIC,
        "0 1",
        "1 1",
        "n1: replicas had bad bytes and were repaired from others",
    ),
    "GoqTopicInDoubt": one(
        "goq_topic_in_doubt",
        joined(TOPIC, state="read-only"),
        "1",
        "0",
        "n1: orders is read-only and waits for a decision",
    ),
    "GoqNoController": Case(
        {
            f"goq_cluster_controller{NODE}": "1",
            'goq_cluster_controller{job="goq",instance="n2"}': "1",
        },
        {
            f"goq_cluster_controller{NODE}": "1",
            'goq_cluster_controller{job="goq",instance="n2"}': "0",
            'goq_cluster_controller{job="goq-2",instance="n1"}': "1",
        },
        "goq: 2 controllers, there should be one",
    ),
    "GoqClusterDiverged": one(
        "goq_cluster_diverged", NODE, "1", "0", "n1: its metadata contradict the cluster's"
    ),
    "GoqUnreachableNodes": one(
        "goq_cluster_unreachable_nodes",
        NODE,
        "1",
        "0",
        "n1: it does not reach 1 nodes that are up",
    ),
    "GoqClockSkew": one(
        "goq_cluster_clock_skew_seconds",
        joined(NODE, node="n3"),
        "-2",
        "0.1",
        "n3: its clock is off by 2s",
    ),
    "GoqLagWithoutConsumers": Case(
        consumers(0), consumers(1), "orders/billing: 7 messages wait and nobody takes them"
    ),
    "GoqOldestWaits": one(
        "goq_group_oldest_ready_seconds",
        GROUP,
        "1200",
        "60",
        "orders/billing: the oldest message waits 20m 0s",
    ),
    "GoqDeadLetters": one(
        "goq_group_dead_messages_total",
        GROUP,
        f"5x{MINUTES - 5} 6",
        "6",
        "orders/billing: it gave up messages",
    ),
    "GoqDeletedUnread": one(
        "goq_group_deleted_unread_messages_total",
        GROUP,
        f"0x{MINUTES - 5} 9",
        "9",
        "orders/billing: retention deleted messages that it had not done",
    ),
    "GoqReplicaLags": one(
        "goq_replica_lag_max_seconds",
        joined(NODE, node="n2"),
        "90",
        "1",
        "n2: its replicas lag by 1m 30s",
    ),
    "GoqGroupsOmitted": one(
        "goq_metrics_omitted_groups", NODE, "50", "0", "n1: 50 groups have no metrics"
    ),
    "GoqLeasesExpire": Case(
        leases(20), leases(5), "orders/billing: over a tenth of the deliveries run out"
    ),
    "GoqSlowDisk": Case(commits(20), commits(0), "n1: a commit takes 487.5ms"),
    "GoqLoopStalls": one(
        "goq_loop_stall_seconds",
        joined(NODE, method="GET", route="/v1/topics"),
        "0.75",
        "0.1",
        "n1: GET /v1/topics holds all others up for 750ms",
    ),
    "GoqErrors": Case(requests(20), requests(5), "n1: over a hundredth of the requests fail"),
    "GoqOpenFiles": Case(
        {f"process_open_fds{NODE}": "900", f"process_max_fds{NODE}": "1000"},
        {f"process_open_fds{NODE}": "90", f"process_max_fds{NODE}": "1000"},
        "n1: 900 files and connections are open, close to the limit",
    ),
    "GoqQuotaRefusals": one(
        "goq_quota_refusals_total",
        joined(NODE, name="shop", quota="requests"),
        f"0+1x{MINUTES}",
        "5",
        "shop: the token is at its quota requests",
    ),
    "GoqCertificateEnds": one(
        "goq_tls_certificate_expiry_seconds",
        NODE,
        str(2 * DAY_S),
        str(30 * DAY_S),
        "n1: the certificate ends in 2d 0h 0m 0s",
    ),
    "GoqClusterCertificateEnds": one(
        "goq_cluster_certificate_expiry_seconds",
        NODE,
        str(2 * DAY_S),
        str(30 * DAY_S),
        "n1: the certificate of cluster.tls ends in 2d 0h 0m 0s",
    ),
    "GoqBackupOld": one(
        "goq_backup_age_seconds",
        NODE,
        str(3 * DAY_S),
        str(DAY_S),
        "n1: the newest backup is 3d 0h 0m 0s old",
    ),
    "GoqBackupFails": one("goq_backup_failures_total", NODE, "0 1", "1", "n1: a backup failed"),
    "GoqArchiveStoreFails": Case(
        {
            f"goq_archive_waiting_bytes{NODE}": "5",
            f"goq_archive_store_failures_total{NODE}": f"0+1x{MINUTES}",
        },
        {
            f"goq_archive_waiting_bytes{NODE}": "5",
            f"goq_archive_store_failures_total{NODE}": "9",
        },
        "n1: the object store of the archive takes no segments",
    ),
    "GoqArchiveDamaged": one(
        "goq_archive_store_damaged_total",
        NODE,
        f"0x{MINUTES - 5} 1",
        "1",
        "n1: the object store of the archive has other bytes than were stored",
    ),
    "GoqArchiveStalls": one(
        "goq_retention_stalls_total",
        TOPIC,
        f"0x{MINUTES - 5} 1",
        "1",
        "n1: orders: retention deletes nothing, as the archive has no room",
    ),
    "GoqRetentionClockHeld": one(
        "goq_retention_clock_held", NODE, "1", "0", "n1: the clock jumped ahead by over an hour"
    ),
    "GoqMemoryBound": Case(
        {f"goq_state_bytes{NODE}": "95", f"goq_state_bytes_max{NODE}": "100"},
        {f"goq_state_bytes{NODE}": "50", f"goq_state_bytes_max{NODE}": "100"},
        "n1: soon no topic or group can be created",
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_names_metrics_that_exist_and_the_docs_say_what_to_do(
    rule: dict[str, Any],
) -> None:
    named = {name.removesuffix("_bucket") for name in METRIC.findall(rule["expr"])}
    assert named <= KNOWN
    assert named or rule["expr"].startswith("up{")
    assert rule["labels"]["severity"] in ("page", "ticket")
    row = next(line for line in ALERTS.splitlines() if line.startswith(f"| `{rule['alert']}` ("))
    assert f"({rule['labels']['severity']})" in row
    assert rule["annotations"]["description"] in row


def test_the_docs_tell_of_no_other_alerts_and_no_alert_is_there_twice() -> None:
    names = [rule["alert"] for rule in RULES]
    assert re.findall(r"^\| `(\w+)` \(", ALERTS, re.MULTILINE) == names
    assert len({*names}) == len(names)


def test_what_the_docs_say_to_watch_has_an_alert() -> None:
    rows = [line for line in TABLES.splitlines() if line.startswith("| `") and "**" in line]
    named = {METRIC.findall(row)[0] for row in rows}
    alerted = {name for rule in RULES for name in METRIC.findall(rule["expr"])}
    assert len(named) > 10
    assert named <= alerted


@pytest.fixture(scope="module")
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("there is no promtool here")
    return path


def test_prometheus_takes_the_rules(promtool: str) -> None:
    subprocess.run([promtool, "check", "rules", FILE], check=True, capture_output=True)


def alert_tests(name: str, series: dict[str, str], told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a test of what alerts say of series at the end."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": each, "values": lasting(values)} for each, values in series.items()
        ],
        "alert_rule_test": [{"eval_time": f"{MINUTES - 1}m", **each} for each in told],
    }


def merged(series: Iterable[dict[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in series:
        assert not found.keys() & each.keys()
        found |= each
    return found


def lasting(values: str) -> str:
    """Return values whose last one goes on until the end."""
    last = values.split()[-1]
    return values if f"x{MINUTES}" in last else f"{values} {last}x{MINUTES}"


def labels_of(rule: dict[str, Any], series: dict[str, str]) -> dict[str, str]:
    """Return the labels that the alert has: those that its rule groups by, or of the series."""
    found = dict(re.findall(r'(\w+)="([^"]*)"', next(iter(series))))
    grouped = re.search(r"(?:sum|max) by \(([^)]*)\)", rule["expr"])
    if grouped is not None:
        found = {name: found[name] for name in grouped[1].split(", ")}
    found.pop("le", None)
    return found | {"severity": rule["labels"]["severity"]}


def test_each_alert_tells_its_fault_and_is_quiet_without_it(promtool: str, tmp_path: Path) -> None:
    assert [rule["alert"] for rule in RULES] == [*CASES]
    faulty, well = [], []
    for rule in RULES:
        case = CASES[rule["alert"]]
        notes = {"summary": case.summary, "description": rule["annotations"]["description"]}
        alert = {"exp_labels": labels_of(rule, case.faulty), "exp_annotations": notes}
        faulty.append({"alertname": rule["alert"], "exp_alerts": [alert]})
        well.append({"alertname": rule["alert"], "exp_alerts": []})
    tests = [
        alert_tests("faults", merged(case.faulty for case in CASES.values()), faulty),
        alert_tests("all is well", merged(case.well for case in CASES.values()), well),
    ]
    path = tmp_path / "tests.yaml"
    whole = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
