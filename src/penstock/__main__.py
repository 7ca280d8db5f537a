"""The command `penstock`, which is also `python -m penstock`."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        # It takes a second: Ctrl-C in between is no reason for a traceback.
        from penstock.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
