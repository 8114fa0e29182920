"""The agent: a conversation whose model can use tools. Its limits are defined here, for `config` and its users."""

MAX_ROUNDS = 90
"""Rounds of tool calls within one turn."""
MAX_PARALLEL_TOOLS = 4
"""Tools that run at the same time."""
TOOL_SECONDS = 3_600.0
"""Longest run of any tool; most have shorter limits of their own."""
MAX_SUBAGENT_ROUNDS = 40
INSTRUCTIONS_CHARS = 20_000
"""Characters of the project's AGENTS.md in the system prompt."""
INSTRUCTIONS_SHARE = 0.1
"""Largest share of the window for AGENTS.md."""
MEMORY_CHARS = 4_000
USER_CHARS = 2_000
RECALL_CHARS = 6_000
