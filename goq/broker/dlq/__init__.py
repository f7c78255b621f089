"""Dead letters: search, redrive and purge.

search   finds dead letters in a dead-letter topic
redrive  redrives dead letters to a topic, or purges them
"""
