"""`everthread lab provider`: a simulated provider of language models on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from everthread.cli.end_signals import watch_end_signals
from everthread.cli.output import encode_json, escape_controls
from everthread.cli.shared_options import PortOption, number_option
from everthread.core.text import excerpt
from everthread.errors import InputError
from everthread.lab.importers.conversation_file import read_conversation

if TYPE_CHECKING:
    from everthread.lab.provider import Provider
    from everthread.lab.provider.answers import RequestRecord
    from everthread.lab.provider.script import Script
    from everthread.lab.provider.served_models import ServedModel


app = typer.Typer(help="Try it out: a simulated provider.", no_args_is_help=True)


@app.callback()
def _lab() -> None:
    pass


ModelOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=WINDOW[:DIALECT]", help="A model to serve; repeatable."),
]
ShowsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help="State the windows in the list of models, as max_model_len, n_ctx_train, context_length or "
        "context_window; else they are hidden.",
    ),
]
CompactionOption = Annotated[
    bool,
    typer.Option(
        help="Answer compaction_trigger and /v1/responses/compact, or refuse them as unknown."
    ),
]
WebsocketOption = Annotated[
    int,
    number_option(
        minimum=400,
        maximum=499,
        metavar="STATUS",
        help_text="The status that refuses a WebSocket.",
    ),
]
ScriptOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A JSON list of answers, used one by one."),
]
TranscriptOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A recorded conversation; each request gets the answer that followed in it.",
    ),
]
EchoOption = Annotated[
    bool, typer.Option("--echo", help="Answer with the last message (the default).")
]
FaultOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND[=RATE]", help="A fault and its rate from 0 to 1; repeatable."),
]
SeedOption = Annotated[int, typer.Option(help="The same seed, the same faults.")]
SecondsOption = Annotated[float, number_option(help_text="How long such a fault hangs or delays.")]
RequestsOption = Annotated[int | None, number_option(help_text="End after N requests.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


@app.command()
def provider(
    port: PortOption = 0,
    model: ModelOption = None,
    shows: ShowsOption = None,
    compaction: CompactionOption = True,
    websocket: WebsocketOption = 405,
    script: ScriptOption = None,
    transcript: TranscriptOption = None,
    echo: EchoOption = False,
    fault: FaultOption = None,
    seed: SeedOption = 0,
    seconds: SecondsOption = 5.0,
    requests: RequestsOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Serve models that answer from a script, with real windows, caches and failures; a line for each request.

    Speaks OpenAI's chat completions and responses and Anthropic's messages. Ctrl-C ends it.
    """
    from everthread.lab.provider.faults import FaultPlan, parse_fault

    if sum(map(bool, (script, transcript, echo))) > 1:
        raise InputError("--script, --transcript and --echo exclude each other; give one of them")
    plan = FaultPlan(dict(map(parse_fault, fault)), seed, seconds) if fault else None
    server_run = _serve(
        _parse_models(model, shows, compacts=compaction),
        _load_answers(script, transcript),
        requests=requests,
        as_json=as_json,
        faults=plan,
        port=port,
        upgrade_status=websocket,
    )
    asyncio.run(server_run)


def _parse_models(
    model_texts: list[str] | None, shows: str | None, *, compacts: bool
) -> list[ServedModel]:
    """Parse `NAME=WINDOW[:DIALECT]` of each model. Return the default models if none is given."""
    from everthread.lab.provider.served_models import DEFAULT_MODELS, WindowField, parse_model

    if shows is not None and shows not in get_args(WindowField):
        raise InputError(
            f"--shows {shows!r} is unknown; use one of: {', '.join(get_args(WindowField))}"
        )
    model_texts = model_texts or [f"{name}={window}" for name, window in DEFAULT_MODELS.items()]
    return [
        parse_model(text, shows=cast("WindowField | None", shows), compacts=compacts)
        for text in model_texts
    ]


async def _serve(
    models: list[ServedModel],
    answers: Script | None,
    *,
    requests: int | None,
    as_json: bool,
    **provider_options: Any,
) -> None:
    """Serve until a signal or the last of `requests` requests; print a line for each."""
    from everthread.lab.provider import Provider

    stop_event = watch_end_signals()

    def print_record(record: RequestRecord) -> None:
        typer.echo(encode_json(record.summary()) if as_json else _format_record(record))
        if requests is not None and len(server.log) >= requests:
            stop_event.set()

    server = Provider(models, answers, listen=print_record, **provider_options)
    async with server:
        _print_start(server, as_json=as_json)
        if requests != 0:
            await stop_event.wait()


def _print_start(server: Provider, *, as_json: bool) -> None:
    windows = {name: model.window for name, model in server.models.items()}
    if as_json:
        typer.echo(encode_json({"url": server.url, "models": windows}))
    else:
        models = ", ".join(f"{name} ({window:,})" for name, window in windows.items())
        typer.echo(
            escape_controls(
                f"{server.url}/v1 (OpenAI), {server.url} (Anthropic): {models}. Ctrl-C ends it."
            )
        )


def _load_answers(script: str | None, transcript: str | None) -> Script | None:
    from everthread.lab.provider.script import RecordedAnswers, read_script

    if transcript:
        return RecordedAnswers(read_conversation(transcript).request.messages)
    if not script:
        return None
    try:
        return read_script(json.loads(Path(script).read_text("utf-8")))
    except OSError as error:
        raise InputError(f"{script}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{script}: is not JSON: {error}") from error
    except InputError as error:
        raise InputError(f"{script}: {error}") from error


def _format_record(record: RequestRecord) -> str:
    status = "gone" if record.status is None else str(record.status)
    tokens = f"{record.prompt_tokens:,} tokens, {record.cached_tokens:,} cached"
    if record.written_tokens:
        tokens += f", {record.written_tokens:,} written"
    notes = [note for note in (record.fault, excerpt(record.error, 100)) if note]
    kind = f"{record.api}{' stream' if record.stream else ''}"
    return escape_controls(
        f"{record.number}  {status}  {record.model or '?'}  {kind}  {tokens}  {': '.join(notes)}".rstrip()
    )
