"""The tools of the agent."""

from __future__ import annotations

from everthread.agent.tool_interface import Tool
from everthread.agent.tools.files import Patch, ReadFile, WriteFile
from everthread.agent.tools.search_files import SearchFiles
from everthread.agent.tools.terminal import Terminal


def file_tools() -> list[Tool]:
    """Return the tools that work on the workspace: commands and files."""
    return [Terminal(), ReadFile(), WriteFile(), Patch(), SearchFiles()]
