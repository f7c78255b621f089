"""The synchronous client. All but ``backend`` and ``transport`` is generated from ``_async``."""
