"""The asynchronous client, and the source that the synchronous one is generated from."""
