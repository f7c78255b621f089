"""``goq completion``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from goq.errors import UsageError
from goq_cli.completion import SCRIPTS


def command(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
) -> None:
    """Print a script that completes commands, options, topics and groups.

    For bash: source <(goq completion bash). For zsh the same, after compinit. For fish: goq
    completion fish | source.
    """
    if shell not in SCRIPTS:
        raise UsageError(f"there is no completion for {shell!r}; there is for {', '.join(SCRIPTS)}")
    sys.stdout.write(SCRIPTS[shell])
