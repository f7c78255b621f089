from tests.support.cli.command import environment, goq, topic
from tests.support.node.fixtures import node

__all__ = ["environment", "goq", "node", "topic"]
