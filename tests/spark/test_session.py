"""The settings of a session that a command makes, and a cluster that gives it no executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.errors import Unavailable, UsageError
from goq.pipeline.spark.session import EXECUTOR_S_MAX, await_first, parse_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_from_python_come_over_a_unix_socket(spark: SparkSession) -> None:
    def in_worker(name: str) -> str | None:
        import os

        return os.environ.get(name)

    asked = spark.sparkContext.parallelize(["PYTHON_UNIX_DOMAIN_ENABLED"], 1)
    assert asked.map(in_worker).collect() == ["True"]


class Waiting:
    """A clock that a sleep moves on."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_an_executor_that_comes_in_time_is_waited_for() -> None:
    time = Waiting()
    until_s = time.now_s + EXECUTOR_S_MAX - 1
    await_first(lambda: int(time.now_s >= until_s), "1g", lambda: time.now_s, time.sleep)
    assert time.now_s >= until_s


def test_a_cluster_without_room_is_told_with_what_was_asked_of_it() -> None:
    time = Waiting()
    with pytest.raises(Unavailable, match=r"no worker with 2g .* spark\.executor\.memory=512m"):
        await_first(lambda: 0, "2g", lambda: time.now_s, time.sleep)
    assert EXECUTOR_S_MAX <= time.now_s - 5.0 < EXECUTOR_S_MAX + 1


def test_settings_of_spark_are_names_with_values() -> None:
    given = ["spark.executor.memory=512m", "spark.a=b=c", "spark.empty="]
    assert parse_settings(given) == {
        "spark.executor.memory": "512m",
        "spark.a": "b=c",
        "spark.empty": "",
    }
    for wrong in ("spark.executor.memory", "executor.memory=1g", "=1", ""):
        with pytest.raises(UsageError, match=r"--conf takes spark\.NAME=VALUE"):
            parse_settings([wrong])
