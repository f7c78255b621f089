"""The examples of docs/http.md and docs/delivery.md do what the pages say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.node.running_node import running_node
from tests.support.paths import DOCS

EXAMPLE = re.compile(r"^```sh\n(.*?)^```\n(?:```json\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z|\d+:\d{6,}:\d+|urn:.*|1[0-9a-f]{13}")


def alike(found: Any, shown: Any) -> bool:
    """Whether an answer is the one shown, times, lease tokens and topic ids aside."""
    if isinstance(shown, dict):
        return (
            isinstance(found, dict)
            and list(found) == list(shown)
            and all(alike(found[name], shown[name]) for name in shown)
        )
    if isinstance(shown, list):
        return (
            isinstance(found, list) and len(found) == len(shown) and all(map(alike, found, shown))
        )
    if isinstance(shown, str) and VARIES.fullmatch(shown):
        return isinstance(found, str) and VARIES.fullmatch(found) is not None
    return bool(found == shown)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("page", "examples_min"), [("http.md", 10), ("delivery.md", 4)])
def test_every_example_answers_as_it_is_shown(page: str, examples_min: int) -> None:
    examples = EXAMPLE.findall((DOCS / page).read_text())
    assert len(examples) >= examples_min
    with running_node(defaults={"delivery": {}}) as node:  # those that a user has
        for script, shown in examples:
            found = subprocess.run(
                [
                    "bash",
                    "-euo",
                    "pipefail",
                    "-c",
                    script.replace("http://127.0.0.1:8080", node.url),
                ],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout
            if shown:
                assert alike(json.loads(found), json.loads(shown)), (script, found)
            else:
                assert '"code":"' not in found.replace('"code":"lease_lost"', "")
