from tests.support.node.fixtures import node, topic

__all__ = ["node", "topic"]
