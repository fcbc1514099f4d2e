"""`python -m fedmcc`."""

from fedmcc.cli import main

if __name__ == "__main__":
    main()
