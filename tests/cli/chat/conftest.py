"""A chat in a real terminal, against the simulated provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from everthread.lab.provider import Provider
from tests.cli.chat.chat_checks import PROMPT
from tests.cli.conftest import environment
from tests.cli.fork_server import ForkServer
from tests.cli.provider_thread import configure_provider
from tests.cli.terminal import Terminal

OpenTerminal = Callable[..., Terminal]
OpenChat = Callable[..., AbstractContextManager[Terminal]]


@pytest.fixture
def open_terminal(home: Path, fork_server: ForkServer) -> OpenTerminal:
    """Open the command at a terminal, in this home."""

    def open_at_terminal(command_line: str, **variables: str) -> Terminal:
        return Terminal(fork_server, command_line, environment(home) | variables)

    return open_at_terminal


@pytest.fixture
def chat(home: Path, workspace: Path, open_terminal: OpenTerminal) -> OpenChat:
    """Open a chat at a terminal and wait for its prompt."""

    @contextmanager
    def open_chat(provider: Provider, options: str = "", *, config: str = "") -> Iterator[Terminal]:
        configure_provider(home, provider, config=config)
        with open_terminal(f"chat -w {workspace} {options}") as terminal:
            terminal.wait_for(PROMPT)
            yield terminal

    return open_chat
