"""`python -m any2ds`."""

from any2ds.cli import main

if __name__ == "__main__":
    main()
