from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from goq.config.node import Config
from goq.config.sources import load_config
from goq.config.topic import TOTAL_RETENTION, TopicSettings
from goq.errors import UsageError
from tests.support.paths import REPOSITORY

EXAMPLE = REPOSITORY / "config.example.yaml"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("GOQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "goq.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def names_in(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        inner = names_in(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found |= inner or {prefix + name}
    return found


def all_settings() -> set[str]:
    broker = {f"broker.{name}" for name in Config().broker.names()}
    own = set(Config().defaults.names())
    topic = {
        f"defaults.{'' if name.partition('.')[0] in own else 'topic.'}{name}"
        for name in TopicSettings().written().keys() | TOTAL_RETENTION
    }
    cluster = {f"cluster.{name}" for name in Config().cluster.names()}
    security = {f"security.{name}" for name in Config().security.names()}
    security |= {f"logging.{name}" for name in Config().logging.names()}
    security |= {f"metrics.{name}" for name in Config().metrics.names()}
    security |= {f"backup.{name}" for name in Config().backup.names()}
    security |= {f"archive.{name}" for name in Config().archive.names()}
    security |= {f"sqs.{name}" for name in Config().sqs.names()}
    return broker | cluster | security | topic | {"defaults.topic.partitions"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("to", "gs://bucket/prefix"), ("every", "soon"), ("every", "1ms"), ("keep", "-1d")],
)
def test_a_setting_of_backups_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"backup\.{name}"):
        load_config(None, {"backup.to": "/backups", f"backup.{name}": value})


@pytest.mark.parametrize("name", ["every", "keep"])
def test_backups_without_a_place_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"backup\.{name}: set backup\.to"):
        load_config(None, {f"backup.{name}": "1h"})
    assert load_config(None, {f"backup.{name}": "1h", "backup.to": "/b"}).backup.to == Path("/b")


@pytest.mark.parametrize(
    ("name", "value"),
    [("to", "gs://bucket/prefix"), ("to", "/a/folder"), ("cache", "1KiB"), ("cache", "much")],
)
def test_a_setting_of_the_archive_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"archive\.{name}"):
        load_config(None, {f"archive.{name}": value})


def test_without_anything_a_node_has_the_defaults() -> None:
    config = load_config(None, {})
    assert (config.broker.host, config.broker.port) == ("127.0.0.1", 8080)
    assert config.broker.data_dir == Path("goq-data")
    assert (config.defaults.partitions, config.defaults.settings) == (6, TopicSettings())


def test_the_example_says_the_defaults_and_names_every_setting() -> None:
    example, default = load_config(EXAMPLE, {}), load_config(None, {})
    assert example.broker == default.broker
    assert example.cluster == default.cluster
    assert example.security == default.security
    assert example.logging == default.logging
    assert example.metrics == default.metrics
    assert example.sqs == default.sqs
    assert example.backup == default.backup
    assert example.archive == default.archive
    assert example.defaults.settings == default.defaults.settings
    assert example.defaults.partitions == default.defaults.partitions
    assert names_in(yaml.safe_load(EXAMPLE.read_text())) == all_settings()


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    sections = "|".join(Config.names())
    rows = dict(re.findall(rf"^\| `((?:{sections})\.[\w.]+)` \| `([^`]*)` \|", text, re.M))
    assert set(rows) == all_settings()
    documented = load_config(None, rows)
    assert documented.broker == Config().broker
    assert documented.cluster == Config().cluster
    assert documented.security == Config().security
    assert documented.logging == Config().logging
    assert documented.metrics == Config().metrics
    assert documented.sqs == Config().sqs
    assert documented.backup == Config().backup
    assert documented.defaults.settings == TopicSettings()
    assert documented.defaults.partitions == 6


def test_every_way_of_writing_a_setting_in_the_documentation_means_the_same(
    monkeypatch: pytest.MonkeyPatch, written: Any
) -> None:
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    rows = re.findall(
        r"^\| `(\w+: \{.*)` \| `(GOQ_\w+)=(.*)` \| `--set ([\w.]+)=(.*)` \|", text, re.M
    )
    assert len(rows) == 2
    for in_file, variable, in_environment, name, in_flag in rows:
        from_file = load_config(written(in_file), {})
        from_flag = load_config(None, {name: in_flag})
        with monkeypatch.context() as environment:
            environment.setenv(variable, in_environment)
            from_environment = load_config(None, {})
        assert from_file != Config()
        for other in (from_environment, from_flag):
            assert other.broker == from_file.broker
            assert other.defaults.settings == from_file.defaults.settings


def test_the_environment_wins_over_the_file_and_flags_over_both(
    monkeypatch: pytest.MonkeyPatch, written: Any
) -> None:
    path = written(
        "broker: {node_id: from-file, listen: '1.1.1.1:1', data_dir: file}\n"
        "defaults: {topic: {retention: {age: 1d, bytes: 1GiB}, partitions: 1}}\n"
    )
    monkeypatch.setenv("GOQ_BROKER__NODE_ID", "from-environment")
    monkeypatch.setenv("GOQ_BROKER__DATA_DIR", "environment")
    monkeypatch.setenv("GOQ_DEFAULTS__TOPIC__RETENTION__AGE", "2d")
    monkeypatch.setenv("goq_defaults__delivery__visibility_timeout", "5s")
    flags = {"broker.data_dir": Path("flag"), "defaults.topic.partitions": "3"}
    config = load_config(path, flags)
    assert config.broker.listen == "1.1.1.1:1"
    assert config.broker.node_id == "from-environment"
    assert config.broker.data_dir == Path("flag")
    settings = config.defaults.settings
    assert settings.retention_age_ms == 2 * 86_400_000
    assert settings.retention_bytes == 2**30
    assert settings.visibility_timeout_ms == 5000
    assert config.defaults.partitions == 3


@pytest.mark.parametrize("below", ["{retention: {age: 1d}}", "{retention.age: 1d}"])
def test_a_dotted_name_and_a_nested_one_are_the_same_setting(
    monkeypatch: pytest.MonkeyPatch, written: Any, below: str
) -> None:
    path = written(f"defaults: {{topic: {below}}}")
    assert load_config(path, {}).defaults.settings.retention_age_ms == 86_400_000
    monkeypatch.setenv("GOQ_DEFAULTS__TOPIC__RETENTION__AGE", "2d")
    assert load_config(path, {}).defaults.settings.retention_age_ms == 2 * 86_400_000
    flags = {"defaults.topic.retention.age": "3d"}
    assert load_config(path, flags).defaults.settings.retention_age_ms == 3 * 86_400_000


def test_an_empty_section_is_as_none(written: Any) -> None:
    assert load_config(written("broker:\ndefaults:\n"), {}) == Config()
    assert load_config(written(""), {}) == Config()


def test_variables_of_the_client_are_none_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOQ_SERVER", "http://elsewhere")
    monkeypatch.setenv("GOQ_TOKEN", "secret")
    assert load_config(None, {}) == Config()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("broker: {listen: 8080}", "broker.listen"),
        ("broker: {listen: localhost}", "broker.listen"),
        ("broker: {listen: ':8080'}", "broker.listen"),
        ("broker: {listen: 'localhost:65536'}", "broker.listen"),
        ("broker: {listen: 'localhost:-1'}", "broker.listen"),
        ("broker: {node: x}", "broker.node"),
        ("broker: {node_id: ''}", "broker.node_id"),
        ("broker: {node_id: 'a b'}", "broker.node_id"),
        ("broker: {data_dir: ''}", "broker.data_dir"),
        ("broker: {data_dir: null}", "broker.data_dir"),
        ("broker: {auto_create_topics: perhaps}", "broker.auto_create_topics"),
        ("broker: [1]", "broker"),
        ("brokers: {}", "brokers"),
        ("defaults: {topics: {}}", "defaults.topics"),
        ("defaults: {topic: 1}", "defaults.topic"),
        ("defaults: {topic: {partitions: 0}}", "defaults.topic.partitions"),
        ("defaults: {topic: {partitions: 1001}}", "defaults.topic.partitions"),
        ("defaults: {topic: {partitions: many}}", "defaults.topic.partitions"),
        ("defaults: {topic: {partitions: true}}", "defaults.topic.partitions"),
        ("defaults: {topic: {retention: {age: soon}}}", "defaults.topic.retention.age"),
        ("defaults: {topic: {retention.age: 1ms}}", "defaults.topic.retention.age"),
        ("defaults: {topic: {retention: {age: .inf}}}", "defaults.topic.retention.age"),
        ("defaults: {topic: {retention: {age: 1.0e+308}}}", "defaults"),
        ("defaults: {topic: {retention: {years: 1}}}", "defaults.topic.retention.years"),
        ("defaults: {topic: {fsync: [always]}}", "defaults.topic.fsync"),
        ("defaults: {delivery: {visibility_timeout: 0s}}", "defaults.delivery.visibility_timeout"),
        ("defaults: {delivery: {timeout: 1s}}", "defaults.delivery.timeout"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(written: Any, text: str, named: str) -> None:
    path = written(text)
    with pytest.raises(UsageError, match=rf"^{re.escape(named)}\b") as caught:
        load_config(path, {})
    assert str(path) in caught.value.detail


def test_every_section_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOQ_METRICS__PARTITIONS", "false")
    monkeypatch.setenv("GOQ_LOGGING__LEVEL", "debug")
    monkeypatch.setenv("GOQ_BROKER", '{"node_id": "n7", "listen": "1.1.1.1:1"}')
    monkeypatch.setenv("GOQ_BROKER__LISTEN", "2.2.2.2:2")
    monkeypatch.setenv("GOQ_DEFAULTS__TOPIC", '{"retention": {"age": "2d"}}')
    config = load_config(None, {})
    assert (config.metrics.partitions, config.logging.level) == (False, "debug")
    assert (config.broker.node_id, config.broker.listen) == ("n7", "2.2.2.2:2")
    assert config.defaults.settings.retention_age_ms == 2 * 86_400_000


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("GOQ_BROKER__DATADIR", "x", "broker.datadir"),
        ("GOQ_BROKER__LISTEN", "x", "broker.listen"),
        ("GOQ_BROKR__LISTEN", "x", "GOQ_BROKR__LISTEN"),
        ("GOQ_BROKER", "not JSON", "GOQ_BROKER is not a JSON object"),
        ("GOQ_DEFAULTS__TOPIC", "{", "GOQ_DEFAULTS__TOPIC is not a JSON object"),
        ("GOQ_BROKER", "[1]", "GOQ_BROKER is not a JSON object"),
        ("GOQ_METRICS__PARTITIONS", "x", "metrics.partitions"),
        ("GOQ_DEFAULTS__TOPIC__FSYNC", "x", "defaults.topic.fsync"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=re.escape(named)):
        load_config(None, {})


@pytest.mark.parametrize(
    "name", ["x", "x.y", "broker", "broker.", "broker.x", "defaults.x", "defaults.topic.x.y"]
)
def test_a_flag_that_is_no_setting_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(name)):
        load_config(None, {name: "1"})


@pytest.mark.parametrize("text", ["a: b: c", "- 1", "text", "1: {}", "\0"])
def test_a_file_that_is_no_configuration_is_named(written: Any, text: str) -> None:
    path = written(text)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        load_config(path, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*absent\.yaml: No such file"):
        load_config(tmp_path / "absent.yaml", {})


MEMBER = {
    "broker.node_id": "n1",
    "cluster.listen": "127.0.0.1:9080",
    "cluster.secret_file": "secret",
}


def test_a_member_knows_its_peers_however_they_are_written() -> None:
    written = load_config(None, {**MEMBER, "cluster.peers": "n1=10.0.0.1:9080,n2=[::1]:9081"})
    mapped = load_config(
        None, {**MEMBER, "cluster.peers": {"n1": "10.0.0.1:9080", "n2": "[::1]:9081"}}
    )
    assert written.cluster == mapped.cluster
    assert written.cluster.is_member
    assert written.cluster.address == ("127.0.0.1", 9080)


def test_peers_in_the_environment_read_as_they_do_in_a_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOQ_CLUSTER__PEERS", "n1=10.0.0.1:9080,n2=n2.goq:9080")
    peers = load_config(None, MEMBER).cluster.peers
    assert peers == {"n1": "10.0.0.1:9080", "n2": "n2.goq:9080"}


def test_of_nodes_that_are_told_the_same_those_join_that_are_not_among_the_peers() -> None:
    told = {**MEMBER, "cluster.peers": "n1=h1:9,n2=h2:9", "cluster.join": "http://goq:8080/"}
    assert load_config(None, told).cluster.join_url("n1") is None
    later = load_config(None, {**told, "broker.node_id": "n3"}).cluster
    assert later.join_url("n3") == "http://goq:8080"


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({"cluster.listen": "0.0.0.0:9", "cluster.peers": "n1=h1:9080"}, "h1:9080"),
        ({"cluster.listen": "10.0.0.1:9080"}, "10.0.0.1:9080"),
        ({"cluster.listen": "0.0.0.0:9", "cluster.advertise": "http://h1:8080"}, "h1:9"),
        ({"cluster.listen": "[::]:9", "cluster.advertise": "http://[fd00::1]:8080"}, "[fd00::1]:9"),
    ],
)
def test_other_nodes_reach_a_node_where_its_configuration_says(
    flags: dict[str, str], address: str
) -> None:
    assert load_config(None, {**MEMBER, **flags}).cluster.address_of("n1") == address


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"cluster.listen": "9080"}, "cluster.listen"),
        ({"cluster.listen": "none"}, "cluster.listen"),
        ({"cluster.secret_file": "none"}, "openssl rand"),
        ({"cluster.peers": "n2=10.0.0.2:9080"}, "n1, is not among n2"),
        ({"cluster.peers": "n1=10.0.0.1"}, "HOST:PORT"),
        ({"cluster.peers": "n1=h:1,n2"}, "'n2' is not ID=HOST:PORT"),
        ({"cluster.peers": "n1=h:1,n1=h:2"}, "'n1' is given for two nodes"),
        ({"cluster.peers": {"n1": "h:1", "n2": "h:1"}}, "'h:1' is given for two nodes"),
        ({"cluster.peers": "n 1=10.0.0.1:1"}, "cluster.peers"),
        ({"cluster.peers": "n2=h:1"}, "cluster.join"),
        ({"cluster.join": "h:8080"}, "cluster.join"),
        ({"cluster.advertise": "http://h:8080/goq"}, "cluster.advertise"),
        ({"cluster.advertise": "http://:8080"}, "cluster.advertise"),
        ({"cluster.advertise": "http://h:80800"}, "cluster.advertise"),
        (
            {"cluster.peers": "none", "cluster.join": "http://h:1", "cluster.listen": "[::]:9080"},
            "cluster.advertise",
        ),
        ({"cluster.tls.cert_file": "n1.pem"}, "cluster.tls.key_file"),
        ({"cluster.tls": "ca.pem"}, "cluster.tls"),
        ({"cluster.min_insync": "0"}, "cluster.min_insync"),
        ({"cluster.min_insync": "33"}, "cluster.min_insync"),
        ({"cluster.colour": "red"}, "cluster.colour"),
    ],
)
def test_a_member_that_cannot_be_is_told_which_setting_is_wrong(
    flags: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        load_config(None, {"cluster.peers": "n1=h:1", **MEMBER, **flags})


def test_certificates_are_named_by_flags_and_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOQ_CLUSTER__TLS__CA_FILE", "ca.pem")
    files = {"cluster.tls.cert_file": "n1.pem", "cluster.tls.key_file": "n1.key"}
    tls = load_config(None, {**MEMBER, "cluster.peers": "n1=h:1", **files}).cluster.tls
    assert tls is not None
    assert [str(tls.cert_file), str(tls.key_file), str(tls.ca_file)] == [
        "n1.pem",
        "n1.key",
        "ca.pem",
    ]


def test_min_insync_may_be_one_and_as_many_as_a_cluster_has_nodes() -> None:
    for number in (1, 32):
        assert load_config(None, {"cluster.min_insync": number}).cluster.min_insync == number
