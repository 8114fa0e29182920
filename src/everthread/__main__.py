"""`python -m everthread` is the command."""

from everthread.cli.main import main

if __name__ == "__main__":
    main()
