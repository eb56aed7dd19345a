"""`python -m ramlet` is the `ramlet` command."""

from ramlet.cli import run

if __name__ == "__main__":
    run()
