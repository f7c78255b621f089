from __future__ import annotations

import os
from collections.abc import Iterator
from random import SystemRandom
from typing import TYPE_CHECKING

import pytest

from tests.support.node.fixtures import node, topic
from tests.support.pipeline.spark_settings import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["node", "topic"]


@pytest.fixture
def seed() -> int:
    """Another one each time; a test that fails shows it, and ``GOQ_TEST_SEED`` repeats it."""
    drawn = int(os.environ.get("GOQ_TEST_SEED") or SystemRandom().randrange(2**32))
    print(f"GOQ_TEST_SEED={drawn}")
    return drawn


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting it takes seconds."""
    pytest.importorskip("pyspark", minversion="4.2")
    from goq.pipeline.spark.session import spark_session

    session = spark_session(
        "local[2,2]",  # a task may fail once
        {
            **QUICK,
            "spark.driver.memory": "1g",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()
