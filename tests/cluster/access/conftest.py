from __future__ import annotations

from tests.support.cli.command import environment, goq
from tests.support.node.fixtures import node

__all__ = ["environment", "goq", "node"]
