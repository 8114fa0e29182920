"""`everthread run TASK`: one task, its answer on standard output as text or JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from everthread.agent.approval import Approvals, read_rules
from everthread.agent.loop import Agent
from everthread.agent.turn_events import TurnEnded
from everthread.cli.chat.approval_prompt import ApprovalPrompt
from everthread.cli.chat.input import LineReader
from everthread.cli.chat.interrupts import Interrupts, StoppedError
from everthread.cli.chat.screen import Screen
from everthread.cli.error_log import log_unexpected_error
from everthread.cli.formats import shorten_id
from everthread.cli.output import encode_json, escape_controls
from everthread.cli.shared_options import StoreOption
from everthread.cli.start_options import (
    RESUME_WITHOUT_ID,
    BaseUrlOption,
    ContinueOption,
    ModelOption,
    ResumeCommand,
    ResumeOption,
    StartOptions,
    WorkspaceOption,
    YesOption,
    read_start_options,
)
from everthread.cli.store_access import find_latest_thread, find_store_address
from everthread.cli.terminal_agent import open_terminal_agent
from everthread.config import home_directory
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.conversation.conversation import Conversation
from everthread.core.types import StreamDelta
from everthread.errors import EverthreadError, InputError
from everthread.factory import open_store
from everthread.store.store import Store
from everthread.thread.events import Event


class TextOutput:
    """A run's output as text: the answer on standard output, the events on standard error.

    On a terminal, one line below the events names the current wait; it is replaced and at last erased.
    """

    def __init__(self, *, quiet: bool, resume_options: str) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._is_quiet = quiet
        self._resume_options = resume_options
        self._thread_id = ""

    def show_start(self, conversation: Conversation) -> None:
        self._thread_id = conversation.id
        if not self._is_quiet:
            self.screen.show_wait("…")

    def show_item(self, item: StreamDelta | Event) -> None:
        if isinstance(item, Event) and not self._is_quiet:
            self.screen.show_event(item, waiting_text="…")

    def show_answer(self, answer: ModelAnswer) -> None:
        self.screen.flush()
        typer.echo(escape_controls(answer.text))

    def show_error(self, error: str) -> None:
        self.screen.flush()
        command = f"everthread chat --resume {shorten_id(self._thread_id)}{self._resume_options}"
        typer.echo(escape_controls(f"everthread: {error}\nContinue with: {command}"), err=True)


class JsonOutput:
    """A run's output as JSON lines on standard output: `start`, `text`, the events, then `answer` or `error`."""

    def __init__(self) -> None:
        self.screen = Screen(Console(stderr=True, highlight=False, emoji=False))
        self._thread_id = ""

    def show_start(self, conversation: Conversation) -> None:
        self._thread_id = conversation.id
        self._print(
            "start",
            thread=conversation.id,
            session=conversation.session.id,
            model=conversation.route.name,
            window=conversation.window,
            window_source=conversation.route.source,
        )

    def show_item(self, item: StreamDelta | Event) -> None:
        if isinstance(item, Event):
            typer.echo(encode_json(item.as_dict()))
        elif item.kind in ("text", "reasoning", "refusal"):
            self._print(item.kind, text=item.text)

    def show_answer(self, answer: ModelAnswer) -> None:
        usage = {
            "prompt": answer.usage.prompt_tokens,
            "cache_read": answer.usage.cache_read_tokens,
            "output": answer.usage.output_tokens,
        }
        self._print(
            "answer",
            text=answer.text,
            stop=answer.stop,
            usage=usage,
            cost=None if answer.cost is None else float(answer.cost),
            thread=self._thread_id,
        )

    def show_error(self, error: str) -> None:
        self._print("error", error=error, thread=self._thread_id)

    def _print(self, event: str, **values: Any) -> None:
        typer.echo(encode_json({"event": event, **values}))


RunOutput = TextOutput | JsonOutput
TYPER_OPTIONS = {"cls": ResumeCommand}


def run(
    task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")],
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    resume: ResumeOption = None,
    continue_: ContinueOption = False,
    workspace: WorkspaceOption = ".",
    yes: YesOption = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print nothing about tools and compactions."),
    ] = False,
    store_url: StoreOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as a line of JSON.")
    ] = False,
) -> None:
    """Do one task and print the answer. The steps of its tools are printed on standard error.

    Without a terminal, a call that needs approval is refused, unless --yes or a rule in approvals.txt allows it.
    """
    text = _read_task(task)
    start_options = read_start_options(
        model=model,
        base_url=base_url,
        resume=resume,
        continue_=continue_,
        workspace=workspace,
        can_ask=False,
    )
    output: RunOutput = JsonOutput()
    if not as_json:
        output = TextOutput(quiet=quiet, resume_options=start_options.resume_options)
    store = open_store(find_store_address(store_url))
    if not asyncio.run(_run(start_options, store, output, text, yes=yes)):
        raise typer.Exit(1)


def _read_task(argument: str) -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8") if argument == "-" else argument
    except UnicodeDecodeError as error:
        raise InputError(f"the task on standard input is not UTF-8 text: {error}") from error
    if not text.strip():
        raise InputError("the task is empty: say what to do")
    return text.strip()


async def _run(
    start_options: StartOptions, store: Store, output: RunOutput, task: str, *, yes: bool
) -> bool:
    """Run the task; return whether it was answered."""
    try:
        thread_id = start_options.thread_id
        if thread_id == RESUME_WITHOUT_ID:
            thread_id = await find_latest_thread(store)
        async with await open_terminal_agent(
            start_options, store, thread_id, _open_approvals(output, yes=yes)
        ) as agent:
            return await _run_turn(agent, output, task)
    finally:
        await store.close()


def _open_approvals(output: RunOutput, *, yes: bool) -> Approvals:
    """Return the approvals of a run. Questions go to standard error, so that the answer can be redirected."""
    has_user = sys.stdin.isatty() and sys.stderr.isatty()
    reader = LineReader(output.screen.console, is_interactive=True)
    return Approvals(
        read_rules(home_directory()),
        ApprovalPrompt(output.screen, reader, lambda: None) if has_user else None,
        allow_everything=yes,
    )


async def _run_turn(agent: Agent, output: RunOutput, task: str) -> bool:
    interrupts = Interrupts(lambda: None, lambda words: output.screen.print(Text(words)))
    output.show_start(agent.conversation)
    try:
        with interrupts.handle_signals():
            answer, turn_end = await interrupts.run(_stream_turn(agent, output, task))
    except StoppedError:
        output.show_error("stopped by Ctrl-C")
        return False
    except EverthreadError as error:
        output.show_error(str(error))
        return False
    except typer.Exit as exit_:
        output.show_error(f"ended by {signal.Signals(exit_.exit_code - 128).name}")
        raise
    except Exception as error:  # noqa: BLE001 - printed, logged with its traceback, and the exit code is 1
        output.show_error(log_unexpected_error(error))
        return False
    output.show_answer(answer)
    return turn_end is None or turn_end.reason == "answered"


async def _stream_turn(
    agent: Agent, output: RunOutput, task: str
) -> tuple[ModelAnswer, TurnEnded | None]:
    turn_end: TurnEnded | None = None
    async with contextlib.aclosing(agent.turn(task)) as items:
        async for item in items:
            if isinstance(item, ModelAnswer):
                return item, turn_end
            if isinstance(item, TurnEnded):
                turn_end = item
            output.show_item(item)
    raise AssertionError("a turn ends with its answer or an error")
