"""Slash commands take text and return a result. They print nothing and are never sent to the model.

if commands.parse(line):
    result = await commands.run(agent, agent.conversation.store, line)
    print(result.text)
    if result.next_session:
        await agent.switch(result.next_session)
"""

# The order of these imports is the order of `/help`.
from everthread.agent.commands import context_commands  # noqa: F401, I001
from everthread.agent.commands import state_commands  # noqa: F401
from everthread.agent.commands import memory_commands  # noqa: F401
from everthread.agent.commands import thread_commands  # noqa: F401
from everthread.agent.commands import cost_commands  # noqa: F401
from everthread.agent.commands.dispatch import (
    COMMANDS,
    Command,
    CommandResult,
    parse,
    run,
)

__all__ = ["COMMANDS", "Command", "CommandResult", "parse", "run"]
