"""``python -m goq_cli``: the same as ``goq``."""

from goq_cli.main import main

main()
