"""A client on a node of its own: what ``goq.open`` returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from goq.client import Client
from goq.embedded import Node


class EmbeddedClient(Client):
    """A client of a node in this process, which ``close`` stops."""

    def __init__(self, node: Node, **options: Any) -> None:
        super().__init__(node.url, **options)
        self.node = node

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Close all connections, then stop the node."""
        try:
            super().close()
        finally:
            self.node.close()


def open_folder(
    data_dir: str | os.PathLike[str],
    *,
    settings: Mapping[str, object] | None = None,
    **options: Any,
) -> EmbeddedClient:
    """Return a client on a node in a data folder, which is created if it is missing.

    ``settings`` are as in :class:`goq.Node`, ``options`` those of :class:`goq.Client`. ``close``
    stops the node. Raises ``DataDirLocked`` while another process uses the folder.
    """
    node = Node(data_dir, settings=settings)
    try:
        return EmbeddedClient(node, **options)
    except BaseException:
        node.close()
        raise
