"""An earlier version of goq, from the repository's history."""

from __future__ import annotations

import compileall
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.support.paths import REPOSITORY


def check_out(commit: str, folder: Path) -> dict[str, str]:
    """Put a commit into a folder; return the environment in which its ``goq`` runs."""
    archive = subprocess.run(
        ["git", "archive", commit, "goq", "goq_cli"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    compileall.compile_dir(folder, quiet=2)  # once: nodes that start together would each do it
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(folder)}
