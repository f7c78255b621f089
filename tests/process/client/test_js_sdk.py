"""The AWS SDK for JavaScript on the SQS-compatible endpoint: it verifies all MD5 digests itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.node_process import NodeProcess, clean_environment
from tests.support.node.ports import HOST, reserved_port

pytestmark = pytest.mark.long
INSTALL_S_MAX, RUN_S_MAX = 300, 120
PACKAGE = "@aws-sdk/client-sqs@3"
SCRIPT = Path(__file__).with_name("sqs_sdk.mjs")


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK. Without Node.js or a registry the tests are skipped."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("sdk")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S_MAX, cwd=folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot install {PACKAGE}: {error}")
    shutil.copy(SCRIPT, folder)
    return folder


def test_the_sdk_for_javascript_finds_what_it_expects(sdk: Path, tmp_path: Path) -> None:
    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]),
    ):
        done = subprocess.run(
            ["node", SCRIPT.name, f"http://{HOST}:{port}"],
            cwd=sdk,
            env=clean_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    attributes = {"text": "é\r\n<&>", "number": "-1.5e3", "bytes": [0, 255, 65]}
    assert told == {
        "tags": {"team": "a"},
        "isSame": True,
        "body": "a\r\nß\U0001f600",
        "attributes": attributes,
        "count": "2",
        "some": ["text", "number"],
        "left": None,
        "batch": 10,
        "found": [str(number) for number in range(10)],
        "pages": [2, 1],
        "error": ["QueueDoesNotExist", True, 400],
        "bound": "InvalidParameterValue",
    }
