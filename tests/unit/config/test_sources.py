"""Where settings come from, and what is refused there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from goq.config.sources import load_config
from goq.errors import UsageError


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("GOQ_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GOQ_BROKER_DATA_DIR", "GOQ_BROKER__DATA_DIR"),
        ("GOQ_DATA_DIR", "the sections are"),
        ("GOQ_CLUSTER_MIN_INSYNC", "GOQ_CLUSTER__MIN_INSYNC"),
        ("GOQ_DEFAULTS_TOPIC_RETENTION_AGE", "GOQ_DEFAULTS__TOPIC__RETENTION__AGE"),
        ("GOQ_DEFAULTS_DELIVERY__MAX_ATTEMPTS", "GOQ_DEFAULTS__DELIVERY__MAX_ATTEMPTS"),
        ("GOQ_SECURITY_HOSTS", "GOQ_SECURITY__HOSTS"),
        ("goq_broker_listen", "GOQ_BROKER__LISTEN"),
        ("GOQ_SERVERS", "the sections are"),
        ("GOQ_TOPICS__AGE", "the sections are"),
    ],
)
def test_an_unknown_variable_stops_the_start_and_the_error_names_the_right_one(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(UsageError, match=rf"{name} is not a setting; .*{meant}"):
        load_config(None, {})


@pytest.mark.parametrize(
    "name",
    [
        "GOQ_SERVER", "GOQ_TOKEN", "GOQ_CLIENT_ID", "GOQ_ID", "GOQ_HEADER_TRACE_ID",
        "GOQ_CERT_FILE", "GOQ_KEY_FILE", "GOQ_RETRY_FOR", "GOQ_GROUP",
        "GOQ_SERVICE_HOST", "GOQ_SERVICE_PORT", "GOQ_SERVICE_PORT_HTTP", "GOQ_PORT",
        "GOQ_PORT_8080_TCP", "GOQ_PORT_8080_TCP_ADDR", "GOQ_NODES_SERVICE_HOST", "GOQ_NODES_PORT",
    ],
)  # fmt: skip
def test_variables_of_clients_and_of_kubernetes_are_no_settings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8080")
    assert load_config(None, {}) == load_config(None, {"broker.node_id": "node-1"})


def test_a_key_that_is_given_twice_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "goq.yaml"
    path.write_text("broker:\n  listen: 127.0.0.1:1\n  node_id: a\n  listen: 127.0.0.1:2\n")
    with pytest.raises(UsageError, match=r"(?s)'listen' is given twice.*goq\.yaml\", line 4"):
        load_config(path, {})
    path.write_text("broker: {}\ncluster: {}\nbroker: {}\n")
    with pytest.raises(UsageError, match="'broker' is given twice"):
        load_config(path, {})


def test_anchors_and_merged_keys_of_yaml_still_work(tmp_path: Path) -> None:
    path = tmp_path / "goq.yaml"
    path.write_text(
        "broker: &one {node_id: a, listen: '127.0.0.1:1'}\n"
        "cluster: {peers: none}\n"
        "defaults: {delivery: {<<: {max_attempts: 7}, max_attempts: 8}}\n"
    )
    assert load_config(path, {}).defaults.settings.attempts_max == 8


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("topic.retention.age", 7),
        ("topic.retention.age", "7"),
        ("topic.retention.age", 7.5),
        ("topic.retention.bytes", 1048576),
        ("topic.segment.bytes", "1048576"),
        ("delivery.visibility_timeout", "30"),
    ],
)
def test_a_duration_or_size_without_unit_is_refused(setting: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"defaults\.{setting}: {value!r} has no unit; write"):
        load_config(None, {f"defaults.{setting}": value})


@pytest.mark.parametrize("value", [0, "0", "0s", "0ms"])
def test_zero_needs_no_unit(value: object) -> None:
    config = load_config(None, {"defaults.delivery.backoff.initial": value})
    assert config.defaults.settings.backoff_initial_ms == 0


@pytest.mark.parametrize(
    "written", ["goq.example.com,*.b.example", ["goq.example.com", "*.B.example"]]
)
def test_hosts_are_listed_as_text_or_as_a_list(written: object) -> None:
    config = load_config(None, {"security.hosts": written})
    assert config.security.hosts == ("goq.example.com", "*.b.example")


@pytest.mark.parametrize("written", ["http://goq.example.com", "goq:8080", "*", "a.*.b", "", "-a"])
def test_a_host_is_a_name_without_scheme_and_port(written: str) -> None:
    with pytest.raises(UsageError, match=r"security\.hosts: .* is not a host name"):
        load_config(None, {"security.hosts": written})


def test_a_node_is_called_by_its_own_names() -> None:
    config = load_config(
        None,
        {
            "broker.node_id": "n1",
            "broker.listen": "goq.internal:8080",
            "cluster.listen": "0.0.0.0:9090",
            "cluster.peers": "n1=one.internal:9090,n2=two.internal:9090",
            "cluster.advertise": "http://advertised.internal:8080",
            "cluster.secret_file": "secret",
            "security.hosts": "more.example",
        },
    )
    assert config.host_names == {
        "goq.internal",
        "one.internal",
        "advertised.internal",
        "more.example",
    }


@pytest.mark.parametrize(
    ("written", "flag", "value"),
    [
        ("security:\n  - auth: tokens\n", "security.hosts", "a.example"),
        ("security: tokens\n", "security.hosts", "a.example"),
        ("broker: [1]\n", "broker.listen", "127.0.0.1:1"),
        ("defaults: {topic: {retention: 7d}}\n", "defaults.topic.retention.bytes", "1GiB"),
    ],
)
def test_what_is_written_in_the_place_of_settings_is_refused_and_not_lost(
    written: str, flag: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "goq.yaml"
    path.write_text(written)
    with pytest.raises(UsageError, match="is not a mapping of settings"):
        load_config(path, {flag: value})
    monkeypatch.setenv("GOQ_" + flag.replace(".", "__").upper(), value)
    with pytest.raises(UsageError, match="is not a mapping of settings"):
        load_config(path, {})


def test_a_section_that_is_empty_takes_settings_of_flags(tmp_path: Path) -> None:
    path = tmp_path / "goq.yaml"
    path.write_text("broker:\ndefaults: {topic: }\n")
    config = load_config(path, {"broker.node_id": "a", "defaults.topic.retention.age": "1d"})
    assert (config.broker.node_id, config.defaults.settings.retention_age_ms) == ("a", 86_400_000)
