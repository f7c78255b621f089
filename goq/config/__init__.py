"""The configuration of a node and the settings of topics.

node       a node's configuration: sections, defaults, bounds
sources    where it comes from: a file, the environment, flags
yaml_file  the file
exposure   checks before a start: machines that reach a node, users that read its secrets
backup     the section of backups
archive    the section of the archive
sqs        the section of the SQS-compatible endpoint
section    a section: its settings by name, each with its parser
addresses  addresses and host names, checked
topic      a topic's settings: names, defaults, bounds
types      how a setting's value is parsed, checked and formatted
"""
