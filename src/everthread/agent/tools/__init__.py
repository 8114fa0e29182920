"""The tools of the agent."""

from __future__ import annotations

from everthread.agent.tool_interface import Tool
from everthread.agent.tools.patch import Patch
from everthread.agent.tools.read_file import ReadFile
from everthread.agent.tools.search_files import SearchFiles
from everthread.agent.tools.terminal import Terminal
from everthread.agent.tools.write_file import WriteFile


def make_file_tools() -> list[Tool]:
    """Return the tools that work on the workspace: commands and files."""
    return [Terminal(), ReadFile(), WriteFile(), Patch(), SearchFiles()]
