"""Requests on their way in: from the bytes of a connection to what a handler gets.

request_parser  parser from bytes to whole requests; no I/O
request_target  the path and the query of a request, decoded
allowed_hosts   the names by which requests may call the server
"""
