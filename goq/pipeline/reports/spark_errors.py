"""Spark's exceptions as errors of goq: one line instead of two stacks."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.logger import PySparkLogger

from goq import errors
from goq.errors import GoqError, InvalidInput

_RAISED_IN_TASK = re.compile(r"^(?:.*\s)?goq\.errors\.(\w+): (.+)$", re.MULTILINE)
_OF_THE_QUERY = (
    AnalysisException,
    ArithmeticException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    SparkRuntimeException,
)


@contextmanager
def told_plainly() -> Generator[None, None, None]:
    """Turn Spark's exceptions inside into ``GoqError``, without Spark's own log of them."""
    log = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except PySparkException as error:
        raise plain(error) from error
    finally:
        log.disabled = was_disabled


def plain(error: PySparkException) -> GoqError:
    """Return the error of goq that a task or the driver raised, else Spark's message."""
    text = str(error)
    raised = _RAISED_IN_TASK.search(text)
    kind = getattr(errors, raised[1], None) if raised is not None else None
    if raised is not None and isinstance(kind, type) and issubclass(kind, GoqError):
        return kind(raised[2])
    said = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if isinstance(error, _OF_THE_QUERY):
        return InvalidInput(said, field="query")
    return GoqError(f"Spark could not run the query: {said}")
