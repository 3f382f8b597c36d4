"""`python -m relmo` is the `relmo` command."""

from relmo.cli import main

if __name__ == "__main__":
    main()
