"""What a section reads, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from goq.config.node import Config
from goq.config.section import ConfigSection
from goq.config.sources import config_of, load_config
from goq.errors import UsageError


def sections() -> list[type[ConfigSection]]:
    found = [ConfigSection]
    for kind in found:
        found += kind.__subclasses__()
    return found[1:]


@pytest.mark.parametrize("kind", sections(), ids=lambda kind: kind.__name__)
def test_each_setting_has_a_parser_and_each_parser_a_setting(kind: type[ConfigSection]) -> None:
    assert set(kind.PARSERS) == set(kind.names())


def test_all_that_is_wrong_is_told_at_once() -> None:
    wrong = {"broker.listen": "x", "broker.node_id": "a b", "sqs.account": "7", "metrics.x": 1}
    with pytest.raises(UsageError) as raised:
        config_of(wrong)
    assert all(f"{name}: " in raised.value.detail for name in wrong)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"broker": {"listn": "127.0.0.1:1"}}, "broker.listen"),
        ({"brokr": {}}, "broker"),
        ({"cluster": {"peer": {}}}, "cluster.peers"),
    ],
)
def test_a_setting_that_is_misspelt_is_told_what_it_may_mean(
    written: dict[str, Any], meant: str
) -> None:
    with pytest.raises(UsageError) as raised:
        Config.read(written)
    assert raised.value.detail.endswith(f": there is no such setting; did you mean {meant}?")


@pytest.mark.parametrize("word", ["true", "True", "yes", "on", "1", "y", "T", True, 1])
def test_a_switch_is_on_by_each_word_for_it(word: object) -> None:
    assert config_of({"security.allow_open": word}).security.allow_open


@pytest.mark.parametrize("word", ["false", "FALSE", "no", "off", "0", "n", "F", False, 0])
def test_a_switch_is_off_by_each_word_for_it(word: object) -> None:
    assert not config_of({"metrics.partitions": word}).metrics.partitions


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker.node_id", 7),
        ("broker.data_dir", 7),
        ("broker.auto_create_topics", None),
        ("broker.auto_create_topics", 2),
        ("cluster.peers", {"n1": 9090}),
        ("cluster.peers", ["n1=h:1"]),
        ("cluster.rack", ["a"]),
        ("cluster.tls_rollover", "later"),
        ("cluster.min_insync", 1.5),
        ("logging.level", "loud"),
        ("security.auth", True),
        ("security.hosts", [7]),
        ("security.hosts", 7),
        ("sqs.region", "us east"),
        ("sqs.region", "us-east-1\n"),
        ("sqs.account", 1_000_000_000_000),
        ("sqs.group", "a b"),
        ("archive.cache", 2_000_000_000),
        ("backup.every", 5),
        ("defaults.topic", {1: 2}),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_and_named(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^{name}: "):
        config_of({name: value})


def test_what_yaml_makes_of_a_word_or_a_number_is_read_as_written() -> None:
    config = config_of({"security.auth": False, "cluster.tls_rollover": False, "sqs.account": 12})
    assert (config.security.auth, config.cluster.tls_rollover) == ("off", "off")
    assert config.sqs.account == "000000000012"


def test_none_takes_a_setting_back() -> None:
    names = ("archive.to", "backup.to", "backup.every", "cluster.tls", "security.tls", "sqs.listen")
    assert config_of(dict.fromkeys(names, "none")) == Config() == load_config(None, {})
