"""`everthread run TASK`: one task, the answer on standard output, in words or JSON lines; `everthread chat`: a talk."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from everthread.agent.approval import Approvals, read_rules
from everthread.agent.events import TurnEnded
from everthread.agent.loop import Agent
from everthread.cli.chat.app import model_for, resumed_model, run_chat
from everthread.cli.chat.input import Asker, Interrupts, LineReader, StoppedError, at_terminal
from everthread.cli.chat.render import Screen, ToolLines, line_of
from everthread.cli.options import (
    NO_ID,
    PLATFORM,
    BaseUrl,
    Continue,
    Model,
    Resume,
    ResumeCommand,
    StoreUrl,
    Workspace,
    Yes,
    latest,
    store_address,
    with_base_url,
)
from everthread.cli.output import json_text, short, unforeseen, visible
from everthread.config import Config, home_directory, load_config
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Event
from everthread.conversation.requests import Answer
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError, InputError
from everthread.factory import open_agent, open_store
from everthread.store.models import NewSession
from everthread.store.store import Store


class Words:
    """The answer on standard output; on standard error what happens on the way."""

    def __init__(self, *, quiet: bool) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._quiet = quiet
        self._tools = ToolLines()
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id

    def item(self, item: StreamDelta | Event) -> None:
        if self._quiet or isinstance(item, StreamDelta):
            return
        line = self._tools.line_of(item) or line_of(item)
        if line is not None:
            self.screen.print(line)

    def end(self, answer: Answer) -> None:
        typer.echo(visible(answer.text))

    def failed(self, error: str) -> None:
        told = f"everthread: {error}\nGo on with: everthread chat --resume {short(self._thread)}"
        typer.echo(visible(told), err=True)


class JsonOutput:
    """Everything as lines of JSON on standard output: `start`, `text`, the events, then `answer` or `error`."""

    def __init__(self) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id
        self._say("start", thread=conversation.id, session=conversation.session.id, model=conversation.route.name,
                  window=conversation.window, window_source=conversation.route.source)  # fmt: skip

    def item(self, item: StreamDelta | Event) -> None:
        if isinstance(item, Event):
            typer.echo(json_text(item.as_dict()))
        elif item.kind in ("text", "reasoning", "refusal"):
            self._say(item.kind, text=item.text)

    def end(self, answer: Answer) -> None:
        used, cost = answer.usage, answer.cost
        tokens = {"prompt": used.prompt_tokens, "cache_read": used.cache_read_tokens, "output": used.output_tokens}
        self._say("answer", text=answer.text, stop=answer.stop, usage=tokens,
                  cost=None if cost is None else float(cost), thread=self._thread)  # fmt: skip

    def failed(self, error: str) -> None:
        self._say("error", error=error, thread=self._thread)

    def _say(self, event: str, **values: Any) -> None:
        typer.echo(json_text({"event": event, **values}))


Shown = Words | JsonOutput


COMMAND = {"cls": ResumeCommand}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done, by which model, in which thread, where."""

    task: str
    model: str | None
    resume: str | None
    workspace: Path


def run(
    task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")],
    model: Model = None,
    base_url: BaseUrl = None,
    resume: Resume = None,
    continue_: Continue = False,
    workspace: Workspace = ".",
    yes: Yes = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No word about tools and compactions.")] = False,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Do one task and print the answer. What its tools do is told on standard error.

    Where nobody is at a terminal, what needs approval is refused, unless --yes or a rule in approvals.txt allows it.
    """
    place, text = Path(workspace).expanduser().resolve(), _task(task)
    if not place.is_dir():
        raise InputError(f"--workspace {workspace}: there is no such directory")
    config = with_base_url(load_config(), base_url)
    asked = NO_ID if continue_ and resume is None else resume
    chosen = model if asked else model_for(config, model, ask=False)
    shown: Shown = JsonOutput() if as_json else Words(quiet=quiet)
    opened = open_store(store_address(store))
    done = asyncio.run(_run(config, opened, shown, Wanted(text, chosen, asked, place), yes=yes))
    if not done:
        raise typer.Exit(1)


def _task(given: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if given == "-" else given
    except UnicodeDecodeError as error:
        raise InputError(f"the task on standard input is no UTF-8 text: {error}") from error
    if not text.strip():
        raise InputError("the task is empty: say what to do")
    return text.strip()


async def _run(config: Config, store: Store, shown: Shown, wanted: Wanted, *, yes: bool) -> bool:
    """Whether the task was done."""
    try:
        resume = await latest(store) if wanted.resume == NO_ID else wanted.resume
        model = wanted.model if resume is None else await resumed_model(store, resume, config, wanted.model, ask=False)
        agent = await open_agent(
            config, model=model, resume=resume, workspace=wanted.workspace,
            approve=_approvals(shown, yes=yes), store=store,
            session=None if resume else NewSession(platform=PLATFORM),
        )  # fmt: skip
        async with agent:
            return await _done(agent, shown, wanted.task)
    finally:
        await store.close()


def _approvals(shown: Shown, *, yes: bool) -> Approvals:
    """Somebody at a terminal is asked, on standard error, so that the answer can go elsewhere."""
    somebody = sys.stdin.isatty() and sys.stderr.isatty()
    reader = LineReader(shown.screen.console, interactive=True)
    return Approvals(
        read_rules(home_directory()), Asker(shown.screen, reader, lambda: None) if somebody else None, everything=yes
    )


async def _done(agent: Agent, shown: Shown, task: str) -> bool:
    interrupts = Interrupts(lambda: None, lambda words: shown.screen.print(Text(words)))
    shown.begin(agent.conversation)
    try:
        with interrupts.caught():
            answer, ended = await interrupts.run(_turn(agent, shown, task))
    except StoppedError:
        shown.failed("stopped by Ctrl-C")
        return False
    except EverthreadError as error:
        shown.failed(str(error))
        return False
    except typer.Exit as left:
        shown.failed(f"ended by {signal.Signals(left.exit_code - 128).name}")
        raise
    except Exception as error:  # noqa: BLE001 - told, logged with its traceback, and the exit code says that it failed
        shown.failed(unforeseen(error))
        return False
    shown.end(answer)
    return ended is None or ended.reason == "answered"


async def _turn(agent: Agent, shown: Shown, task: str) -> tuple[Answer, TurnEnded | None]:
    ended: TurnEnded | None = None
    async with contextlib.aclosing(agent.turn(task)) as items:
        async for item in items:
            if isinstance(item, Answer):
                return item, ended
            if isinstance(item, TurnEnded):
                ended = item
            shown.item(item)
    raise AssertionError("a turn ends with its answer or an error")


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
