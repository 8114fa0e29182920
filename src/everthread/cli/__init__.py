"""The command line: `main`, shared options and output, the chat, and one file a command."""
