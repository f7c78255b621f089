"""Where ``goq`` and ``python -m goq_cli`` begin."""

import signal
from typing import NoReturn


def run() -> NoReturn:
    """Run ``goq`` and exit.

    Imports take tenths of a second. An interrupt meanwhile ends the process without a word.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from goq_cli.main import main

    main()


if __name__ == "__main__":
    run()
