from support.cli import environment, goq, node, topic

__all__ = ["environment", "goq", "node", "topic"]
