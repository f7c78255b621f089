"""Room for many topics, no terminal of the caller's, and groups of tests for several processes.

Tests run in several processes. Those of a group run one after the other in one of them: the tests
of a file, and all that use Spark.
"""

from __future__ import annotations

import os
import resource

import pytest

# The process that tests run in may be told of a terminal, and theirs have other sizes.
for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)

# A node raises its own limit; the nodes that tests run in their own process need it here.
_, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each test into its group: a session of Spark takes long to start, and much memory."""
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        group = "spark" if item.path in with_spark else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
