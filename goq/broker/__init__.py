"""Topics and partitions at work: publishing, receiving, settling, and the disk behind them.

The broker runs what delivery decides: an event is written and durable before its effect leaves
the node. All of it lives on one event loop; only disk work goes to threads.
"""
