"""Dead letters: search, redrive and purge.

place    where the dead letters of a topic are
search   finds dead letters in a dead-letter topic
redrive  redrives dead letters to a topic, or purges them
"""
