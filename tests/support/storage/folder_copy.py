"""A copy of a folder whose node runs."""

from __future__ import annotations

from pathlib import Path
from shutil import Error, copytree, rmtree


def copy_in_use(source: Path, target: Path) -> None:
    """Copy a folder as it is at one moment: again if a file came or went meanwhile.

    A file that is written in the background, as an index, gets its name once it is whole.
    """
    while True:
        before = _names(source)
        try:
            copytree(source, target)
        except (FileNotFoundError, Error):  # shutil gathers the errors of files
            pass
        else:
            if _names(source) == before == _names(target):
                return
        rmtree(target, ignore_errors=True)


def _names(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}
