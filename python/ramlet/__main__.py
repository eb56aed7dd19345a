"""`python -m ramlet` is the `ramlet` command."""

from ramlet.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
