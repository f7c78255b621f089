"""What an optional part of goq needs, and how to say that it is not there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from goq.errors import UsageError


@contextmanager
def needs_extra(extra: str) -> Generator[None, None, None]:
    """Turn a failed import into one line that says what to install."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"this needs {error.name}, which is not installed: pip install 'goq[{extra}]'"
        ) from None
