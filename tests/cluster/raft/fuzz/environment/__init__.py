"""The simulated environment of the nodes: time and chance, links, clock and files."""
