"""The `ramlet` command and `python -m ramlet`: imports the command line and runs it."""

import sys


def run() -> None:
    """Runs the command; also handles Ctrl-C before its own `main` can: while it is being imported, and right after."""
    try:
        from ramlet.cli import run as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run the same command to resume\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
