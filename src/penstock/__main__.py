"""The command `penstock`, which is also `python -m penstock`."""

import os
import sys


def main() -> None:
    """Run the command line."""
    # For numpy, here and in all processes that are started from here: nobody multiplies matrices, and the threads
    # that would are started, and spin, in each of them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # It takes a second: Ctrl-C in between is no reason for a traceback.
        from penstock.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
