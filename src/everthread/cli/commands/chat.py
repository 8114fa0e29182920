"""`everthread chat`: talk with a model in the terminal."""

from __future__ import annotations

import asyncio

from everthread.cli.chat.chat_start import run_chat
from everthread.cli.chat.input import is_at_terminal
from everthread.cli.shared_options import StoreOption
from everthread.cli.start_options import (
    BaseUrlOption,
    ContinueOption,
    ModelOption,
    ResumeCommand,
    ResumeOption,
    WorkspaceOption,
    YesOption,
    read_start_options,
)
from everthread.cli.store_access import find_store_address
from everthread.factory import open_store

TYPER_OPTIONS = {"cls": ResumeCommand}


def chat(
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    resume: ResumeOption = None,
    continue_: ContinueOption = False,
    workspace: WorkspaceOption = ".",
    yes: YesOption = False,
    store_url: StoreOption = None,
) -> None:
    """Talk with a model that has tools, in this directory. Threads are stored and outgrow the model's window."""
    start_options = read_start_options(
        model=model,
        base_url=base_url,
        resume=resume,
        continue_=continue_,
        workspace=workspace,
        can_ask=is_at_terminal(),
    )
    store = open_store(find_store_address(store_url))
    asyncio.run(run_chat(start_options, store, let_user_pick=not continue_, allow_everything=yes))
