"""``goq version``."""

from __future__ import annotations

from goq import __version__
from goq_cli.output.output import print_answer


def command() -> None:
    """Print the version of this program."""
    print_answer({"version": __version__}, f"goq {__version__}")
