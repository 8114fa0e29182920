"""`everthread chat`: what it takes; the talk itself is in `everthread.cli.chat`."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from everthread.cli.chat.app import model_for, run_chat
from everthread.cli.chat.input import at_terminal
from everthread.cli.options import (
    NO_ID,
    BaseUrl,
    Continue,
    Model,
    Resume,
    ResumeCommand,
    StoreUrl,
    Workspace,
    Yes,
    store_address,
    with_base_url,
)
from everthread.config import load_config
from everthread.errors import InputError
from everthread.factory import open_store

COMMAND = {"cls": ResumeCommand}


def chat(
    model: Model = None,
    base_url: BaseUrl = None,
    resume: Resume = None,
    continue_: Continue = False,
    workspace: Workspace = ".",
    yes: Yes = False,
    store: StoreUrl = None,
) -> None:
    """Talk with a model that has tools, in this directory. Threads are kept, and outlive the model's window."""
    place = Path(workspace).expanduser().resolve()
    if not place.is_dir():
        raise InputError(f"--workspace {workspace}: there is no such directory")
    config = with_base_url(load_config(), base_url)
    asked = NO_ID if continue_ and resume is None else resume
    chosen = model if asked else model_for(config, model, ask=at_terminal())
    opened = open_store(store_address(store))
    again = "" if base_url is None else f" --base-url {shlex.quote(base_url)}"
    asyncio.run(run_chat(config, opened, chosen, asked, place, pick=not continue_, yes=yes, again=again))
