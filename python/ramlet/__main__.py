"""The `ramlet` command, and `python -m ramlet`: loads what runs it."""

import sys


def run() -> None:
    """Runs the command; Ctrl-C is heard also while it is being loaded, before its own `main` can hear it."""
    try:
        from ramlet.cli import run as run_command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command to go on\n")
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    run()
