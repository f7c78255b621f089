"""The node's HTTP interface: routes over the broker, JSON for people and frames for speed."""
