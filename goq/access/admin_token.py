"""The file ``admin.token`` in a data folder: the token of an administrator of that node.

The first start that asks for tokens writes it, with mode 0600, unless there is a token that may
administer. A reader of the data folder can read all messages anyway. Without the file, which may be
deleted once there is another such token, the token does not count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from goq.access.token import draw_secret, draw_token_id, format_token
from goq.errors import UsageError

FILE_NAME: Final = "admin.token"
_MODE: Final = 0o600
_OTHERS: Final = 0o077
_WORLD: Final = 0o007


def read_admin_token(data_dir: Path) -> str | None:
    """Return the token in the file, None without a file. Raises ``UsageError``."""
    path = data_dir / FILE_NAME
    try:
        check_private(path)
        return path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def write_admin_token(data_dir: Path) -> str:
    """Write a new token into the file and return it. Raises ``OSError``."""
    text = format_token(draw_token_id(), draw_secret())
    path = data_dir / FILE_NAME
    unfinished = path.with_name(FILE_NAME + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return text


def check_private(path: Path) -> None:
    """Raise ``UsageError`` if other users may read a file with a secret, ``OSError`` without it.

    The group of a file of another owner may read it: so do mounted secrets and credentials of
    systemd reach a node that does not run as root.
    """
    found = path.stat()
    is_own = found.st_uid == os.geteuid()
    mode = found.st_mode & 0o777
    if mode & (_OTHERS if is_own else _WORLD):
        remedy = f"run: chmod 600 {path}" if is_own else "mount it with the mode 0440"
        raise UsageError(
            f"other users may read {path}, which holds a secret (mode {mode:04o}); {remedy}"
        )
