"""Search for messages by key, dedup id, header or text.

finder             searches the partitions of a topic and merges the results, newest first
partition_search   searches one partition backwards, in steps
cursor             the text form of the position where a search continues
key_index_builder  builds the ``.keys`` files of sealed segments in the background
"""
