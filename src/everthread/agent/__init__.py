"""A conversation whose model can do things. Here its bounds, each written once, for `config` and for who uses them."""

MAX_ROUNDS = 90
"""Rounds of tool calls within one turn."""
PARALLEL = 4
"""Tools that run at the same time."""
TOOL_SECONDS = 3_600.0
"""Tools have limits of their own; one that outlives even this is ended."""
SUBAGENT_ROUNDS = 40
INSTRUCTIONS_CHARS = 20_000
"""Of the project's AGENTS.md, in the system prompt."""
INSTRUCTIONS_SHARE = 0.1
"""Of the window, at most."""
MEMORY_CHARS = 4_000
USER_CHARS = 2_000
RECALL_CHARS = 6_000
