"""The synchronous client. All but ``runtime`` and ``transport`` is generated from ``_async``."""
