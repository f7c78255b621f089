"""Commands of ``goq`` that need Spark, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from goq_cli import main
from goq_cli.session import SESSION
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Goq = Callable[..., tuple[str, str]]


@pytest.fixture
def goq(
    spark: SparkSession,
    node: RunningNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Goq:
    """Run ``goq`` in this process with the tests' Spark; ``code`` is the exit code to expect."""
    from goq.pipeline.spark import session

    monkeypatch.setattr(session, "spark_session", lambda _master: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(SESSION, "servers", [])
        monkeypatch.setattr(SESSION, "json", False)
        found = main._run([*arguments, "--server", node.url])
        said = capsys.readouterr()
        assert found == code, (arguments, said.err)
        return said.out, said.err

    return run
