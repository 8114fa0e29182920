"""The agent: a conversation whose model can use tools. Its limits are defined here, for `config` and its users."""

MAX_ROUNDS = 90
"""Maximum rounds of tool calls within one turn."""
MAX_PARALLEL_TOOLS = 4
"""Maximum number of tools that run at the same time."""
MAX_TOOL_SECONDS = 3_600.0
"""Maximum seconds that any tool may run; most have shorter limits of their own."""
MAX_SUBAGENT_ROUNDS = 40
MAX_INSTRUCTIONS_CHARS = 20_000
"""Maximum characters of the project's AGENTS.md in the system prompt."""
MAX_INSTRUCTIONS_SHARE = 0.1
"""Maximum share of the window for AGENTS.md."""
MAX_MEMORY_CHARS = 4_000
MAX_USER_CHARS = 2_000
MAX_RECALL_CHARS = 6_000
