from goq.pytest_plugin import goq_client, goq_node

__all__ = ["goq_client", "goq_node"]
