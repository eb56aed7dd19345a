"""The `ramlet` command and `python -m ramlet`: imports the command line and runs it."""

import sys


def run() -> None:
    """Runs the command; also handles Ctrl-C before its own `main` can: while it is being imported, and right after."""
    try:
        from ramlet.cli import run as run_command

        run_command()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 turns an interruption of some imports into a RuntimeError.
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):
            raise
        sys.stderr.write("interrupted; run the same command to resume\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
