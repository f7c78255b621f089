"""Room for many topics, no terminal of the caller's, and groups of tests for several processes.

Tests run in several processes. Those of a group run one after the other in one of them: the tests
of a file, and all that use Spark.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.api.secret_watch import WATCH, watch_this_process
from tests.support.storage.open_files import left_open, open_files

_TESTS = Path(__file__).parent

# The process that tests run in may be told of a terminal, and theirs have other sizes.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)

# Hundreds of tests start goq: without its bytecode each of them compiles it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A node raises its own limit; the nodes that tests run in their own process need it here.
_, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))


watch_this_process()

# A test of generated values that names no number tries so many, the same in each run; `make
# test-long` tries others. How long a busy machine draws says nothing of a test.
_ANY_TIME = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=40, derandomize=True, **_ANY_TIME)
hypothesis.settings.register_profile("long", max_examples=400, **_ANY_TIME)
hypothesis.settings.load_profile("quick")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test beside which a node answered or logged the secret of a token."""
    WATCH.check()


@pytest.fixture(autouse=True)
def no_file_stays_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that leaves a file or folder open: a node runs for months."""
    if request.path.relative_to(_TESTS).parts[0] != "unit":
        yield
        return
    before = open_files()
    yield
    assert left_open(before) == []


_KINDS = ("spark", "process", "cluster", "sim", "docs", "integration", "unit")
"""In this order the groups begin: what takes longest first, so that all processes end together."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let collections of garbage pass over the modules and the tests: half a million objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are processors: many tests wait for nodes, timers and disks."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put each test into its group, and the groups in order, where several processes run tests.

    A session of Spark takes long to start, and much memory: all that use it are one group. The
    simulation shares nothing, so each of its tests goes where there is time.
    """
    if not hasattr(config, "workerinput"):
        return
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    kinds = {item: item.path.relative_to(_TESTS).parts[0] for item in items}
    for item in items:
        if item.path in with_spark:
            kinds[item] = "spark"
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif kinds[item] != "sim":
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    items.sort(key=lambda item: _KINDS.index(kinds[item]))
