"""The logs of a partition on several nodes: followers fetch from the leader what they lack."""
