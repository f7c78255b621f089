"""The configuration of a node and the settings of topics.

node   a node's configuration, from a file, the environment and flags
topic  a topic's settings: names, defaults, bounds
types  how a setting's value is parsed, checked and formatted
"""
