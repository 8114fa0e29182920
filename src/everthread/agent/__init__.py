"""An agent: the tool loop, its tools, memory, slash commands."""
