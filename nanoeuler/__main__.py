"""``python -m nanoeuler`` and the command ``nanoeuler``: the command line."""

import sys


def main() -> None:
    """Load the command line and run it. Ctrl-C while it still loads ends in one line, as it does later."""
    try:
        from nanoeuler.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
