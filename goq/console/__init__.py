"""The web console: static files that a browser runs against the node's HTTP API.

assets  the files, each with its content type and a tag of its content

``static`` has the files: ES modules as a browser loads them, without a build. ``static/vendor`` has
Preact with htm, and uPlot, as published; ``vendor/VERSIONS`` says which, with their digests.
"""
