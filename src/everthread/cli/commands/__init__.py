"""A file for each command, or a folder with its parts; loaded when the command is called."""
