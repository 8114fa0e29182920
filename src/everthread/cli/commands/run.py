"""`everthread run TASK`: one task, its answer on standard output as text or JSON lines; `everthread chat`."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from everthread.agent.approval import Approvals, read_rules
from everthread.agent.events import ToolStarted, TurnEnded
from everthread.agent.loop import Agent
from everthread.cli.chat.app import choose_model, choose_resumed_model, run_chat
from everthread.cli.chat.input import Asker, Interrupts, LineReader, StoppedError, at_terminal
from everthread.cli.chat.render import Screen, ToolLines, render_event
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
    find_latest_thread,
    store_address,
    with_base_url,
)
from everthread.cli.output import json_text, report_unexpected, shorten_id, visible
from everthread.config import Config, home_directory, load_config
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Event, Notice
from everthread.conversation.requests import Answer
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError, InputError
from everthread.factory import open_agent, open_store
from everthread.store.models import NewSession
from everthread.store.store import Store


class TextOutput:
    """Prints the answer on standard output and the events on standard error.

    On a terminal, one line below the events tells what is waited for; it is replaced and at last erased.
    """

    def __init__(self, *, quiet: bool, options: str) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._quiet, self._options = quiet, options
        self._tools = ToolLines()
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id
        self._show_waiting("…")

    def item(self, item: StreamDelta | Event) -> None:
        if self._quiet or isinstance(item, StreamDelta):
            return
        if isinstance(item, Notice) and item.passing and self.screen.rich:
            self._show_waiting(f"! {visible(item.text)}")
            return
        line = self._tools.render(item) or render_event(item)
        if line is not None:
            self.screen.settle()
            self.screen.print(line)
        if line is not None or isinstance(item, ToolStarted):
            self._show_waiting(self._tools.running or "…")

    def _show_waiting(self, words: str) -> None:
        if not self._quiet:
            self.screen.show_waiting(words)

    def end(self, answer: Answer) -> None:
        self.screen.settle()
        typer.echo(visible(answer.text))

    def fail(self, error: str) -> None:
        self.screen.settle()
        advice = f"Continue with: everthread chat --resume {shorten_id(self._thread)}{self._options}"
        typer.echo(visible(f"everthread: {error}\n{advice}"), err=True)


class JsonOutput:
    """Prints JSON lines on standard output: `start`, `text`, the events, then `answer` or `error`."""

    def __init__(self) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._thread = ""

    def begin(self, conversation: Conversation) -> None:
        self._thread = conversation.id
        self._print("start", thread=conversation.id, session=conversation.session.id, model=conversation.route.name,
                  window=conversation.window, window_source=conversation.route.source)  # fmt: skip

    def item(self, item: StreamDelta | Event) -> None:
        if isinstance(item, Event):
            typer.echo(json_text(item.as_dict()))
        elif item.kind in ("text", "reasoning", "refusal"):
            self._print(item.kind, text=item.text)

    def end(self, answer: Answer) -> None:
        used, cost = answer.usage, answer.cost
        tokens = {"prompt": used.prompt_tokens, "cache_read": used.cache_read_tokens, "output": used.output_tokens}
        self._print("answer", text=answer.text, stop=answer.stop, usage=tokens,
                    cost=None if cost is None else float(cost), thread=self._thread)  # fmt: skip

    def fail(self, error: str) -> None:
        self._print("error", error=error, thread=self._thread)

    def _print(self, event: str, **values: Any) -> None:
        typer.echo(json_text({"event": event, **values}))


Output = TextOutput | JsonOutput
COMMAND = {"cls": ResumeCommand}


def run(
    task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")],
    model: Model = None,
    base_url: BaseUrl = None,
    resume: Resume = None,
    continue_: Continue = False,
    workspace: Workspace = ".",
    yes: Yes = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing about tools and compactions.")] = False,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
) -> None:
    """Do one task and print the answer. What its tools do is printed on standard error.

    Without a terminal, what needs approval is refused, unless --yes or a rule in approvals.txt allows it.
    """
    directory, text = _resolve_workspace(workspace), _read_task(task)
    config = with_base_url(load_config(), base_url)
    thread = NO_ID if continue_ and resume is None else resume
    model = model if thread else choose_model(config, model, ask=False)
    output: Output = JsonOutput() if as_json else TextOutput(quiet=quiet, options=repeat_base_url(base_url))
    opened = open_store(store_address(store))
    if not asyncio.run(_run(config, opened, output, text, model, thread, directory, yes=yes)):
        raise typer.Exit(1)


def repeat_base_url(base_url: str | None) -> str:
    """The option that a later command needs to reach the same server."""
    return "" if base_url is None else f" --base-url {shlex.quote(base_url)}"


def _resolve_workspace(workspace: str) -> Path:
    directory = Path(workspace).expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"--workspace {workspace}: there is no such directory")
    return directory


def _read_task(argument: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if argument == "-" else argument
    except UnicodeDecodeError as error:
        raise InputError(f"the task on standard input is not UTF-8 text: {error}") from error
    if not text.strip():
        raise InputError("the task is empty: say what to do")
    return text.strip()


async def _run(
    config: Config, store: Store, output: Output, task: str, model: str | None, resume: str | None, workspace: Path,
    *, yes: bool,
) -> bool:  # fmt: skip
    """Run the task; True where it was answered."""
    try:
        if resume == NO_ID:
            resume = await find_latest_thread(store)
        if resume is not None:
            model = await choose_resumed_model(store, resume, config, model, ask=False)
        agent = await open_agent(
            config, model=model, resume=resume, workspace=workspace, approve=_open_approvals(output, yes=yes),
            store=store, session=None if resume else NewSession(platform=PLATFORM),
        )  # fmt: skip
        async with agent:
            return await _run_turn(agent, output, task)
    finally:
        await store.close()


def _open_approvals(output: Output, *, yes: bool) -> Approvals:
    """Questions go to standard error, so that the answer can be redirected."""
    has_user = sys.stdin.isatty() and sys.stderr.isatty()
    reader = LineReader(output.screen.console, interactive=True)
    return Approvals(
        read_rules(home_directory()), Asker(output.screen, reader, lambda: None) if has_user else None, everything=yes
    )


async def _run_turn(agent: Agent, output: Output, task: str) -> bool:
    interrupts = Interrupts(lambda: None, lambda words: output.screen.print(Text(words)))
    output.begin(agent.conversation)
    try:
        with interrupts.handle_signals():
            answer, ended = await interrupts.run(_stream_turn(agent, output, task))
    except StoppedError:
        output.fail("stopped by Ctrl-C")
        return False
    except EverthreadError as error:
        output.fail(str(error))
        return False
    except typer.Exit as exit_:
        output.fail(f"ended by {signal.Signals(exit_.exit_code - 128).name}")
        raise
    except Exception as error:  # noqa: BLE001 - printed, logged with its traceback, and the exit code is 1
        output.fail(report_unexpected(error))
        return False
    output.end(answer)
    return ended is None or ended.reason == "answered"


async def _stream_turn(agent: Agent, output: Output, task: str) -> tuple[Answer, TurnEnded | None]:
    ended: TurnEnded | None = None
    async with contextlib.aclosing(agent.turn(task)) as items:
        async for item in items:
            if isinstance(item, Answer):
                return item, ended
            if isinstance(item, TurnEnded):
                ended = item
            output.item(item)
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
    """Talk with a model that has tools, in this directory. Threads are stored and outgrow the model's window."""
    directory = _resolve_workspace(workspace)
    config = with_base_url(load_config(), base_url)
    thread = NO_ID if continue_ and resume is None else resume
    model = model if thread else choose_model(config, model, ask=at_terminal())
    opened = open_store(store_address(store))
    options = repeat_base_url(base_url)
    asyncio.run(run_chat(config, opened, model, thread, directory, pick=not continue_, yes=yes, options=options))
