"""Requests that Schemathesis generates from a node's description, within its bounds and beyond."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.node.running_node import RunningNode

_ANSWERS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method"
)
_REFUSALS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 421, 422, 428, 429, "5xx"]
"""
"""Wrong data may also be too large: by default Schemathesis does not take 413 for a refusal."""

_ANSWER_S_MAX = "120"
"""By default Schemathesis waits 10 s: less than ``wait=30s``, and 1,000 new partitions may take."""

_WAITING = "stream|/ready|/v1/live"
"""Routes that hold their answer: other tests ask them."""


def check_generated_requests(node: RunningNode, folder: Path, *options: str) -> None:
    """Fail if ``node`` answers otherwise than its description says, or takes what it excludes.

    Files of Schemathesis go to ``folder``.
    """
    _run(node, folder, f"{_ANSWERS},negative_data_rejection", _WAITING, _REFUSALS, options)


def check_requests_with_token(
    node: RunningNode, folder: Path, token: str, parameters: dict[str, str]
) -> None:
    """Fail if ``node`` answers requests with a token otherwise than its description says.

    ``parameters`` have these values in every request, as ``path.topic``. No request revokes the
    token, as one of an administrator's might.
    """
    fixed = "".join(f'"{name}" = "{value}"\n' for name, value in parameters.items())
    header = ("--header", f"Authorization: Bearer {token}")
    amount = ("--phases", "coverage,fuzzing", "--max-examples", "3")
    left_out = f"{_WAITING}|/v1/tokens/"
    _run(node, folder, _ANSWERS, left_out, f"[parameters]\n{fixed}", (*header, *amount))


def _run(
    node: RunningNode,
    folder: Path,
    checks: str,
    left_out: str,
    settings: str,
    options: Sequence[str],
) -> None:
    (folder / "schemathesis.toml").write_text(settings)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", f"{node.url}/openapi.json", "--checks", checks, "--seed", "1", "--no-color"),
            *("--exclude-path-regex", left_out, "--request-timeout", _ANSWER_S_MAX),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
