"""The command line: `main`, the commands, the chat, and what several commands share."""
