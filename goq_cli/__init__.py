"""The ``goq`` command: thin over the client library, but for ``serve``, which runs a node."""
