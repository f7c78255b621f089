"""The configuration of a node and the settings of topics.

node       a node's configuration: sections, defaults, bounds
sources    where it comes from: a file, the environment, flags
yaml_file  the file
topic      a topic's settings: names, defaults, bounds
types      how a setting's value is parsed, checked and formatted
"""
