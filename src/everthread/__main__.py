"""`python -m everthread` is the command."""

from everthread.cli import main

if __name__ == "__main__":
    main()
