"""`everthread doctor`: check the setup and suggest fixes."""

from __future__ import annotations

import asyncio

import typer

from everthread.cli.commands.doctor.check_result import STATE_MARKS, CheckResult
from everthread.cli.commands.doctor.model_checks import (
    check_endpoint,
    check_keys,
    check_local_model,
    check_model,
    check_summaries,
)
from everthread.cli.commands.doctor.storage_checks import check_home, check_store
from everthread.cli.output import indent_further_lines, print_json, print_text
from everthread.cli.shared_options import JsonOption
from everthread.cli.summary_writer import describe_client_writer
from everthread.compaction import registry
from everthread.config import Config, config_path, home_directory, load_config
from everthread.errors import ConfigError, EverthreadError


async def run_checks() -> list[CheckResult]:
    """Run every check, each after the checks that it depends on."""
    results = [check_home()]
    try:
        config = load_config()
    except ConfigError as error:
        advice = "correct the file; `everthread config check` looks again"
        broken_config = CheckResult("configuration", "broken", str(error), advice)
        return [*results, broken_config, check_keys(None), check_local_model(None)]
    config_text = str(config_path())
    if not config_path().exists():
        config_text += " is not there: using defaults"
    results += [CheckResult("configuration", "good", config_text), check_keys(config)]
    choice, model_check = check_model(config)
    results += [model_check, *check_summaries(config)]
    if choice is not None and choice.provider != "local":
        results.append(await check_endpoint(choice))
    results += await check_store(config, choice)
    writer_text = f"summaries for its clients: written by {describe_client_writer(config)}"
    return [
        *results,
        check_engine(config),
        CheckResult("gateway", "good", writer_text),
        check_local_model(choice),
    ]


def check_engine(config: Config) -> CheckResult:
    try:
        source = registry.find_engine(config.context.engine, home=home_directory())
        source.load()
    except EverthreadError as error:
        advice = "`everthread plugins` lists engines, `plugins use NAME` switches"
        return CheckResult("engine", "broken", str(error), advice)
    return CheckResult("engine", "good", f"{source.name} ({source.origin}: {source.location})")


def doctor(as_json: JsonOption = False) -> None:
    """Diagnose your setup and suggest fixes. Exit code 1 if something needed is broken."""
    results = asyncio.run(run_checks())
    broken_names = [result.name for result in results if result.state == "broken"]
    is_healthy = not broken_names
    if as_json:
        findings = [result.as_json() for result in results]
        print_json({"healthy": is_healthy, "findings": findings})
    else:
        width = max(len(result.name) for result in results)
        for result in results:
            advice = ""
            if result.advice:
                advice = f"\n  → {indent_further_lines(result.advice, indent=4)}"
            text = f" {result.name:<{width}}  {indent_further_lines(result.text, indent=width + 4)}"
            print_text(STATE_MARKS[result.state], text, (advice, "bold"))
        if is_healthy:
            print_text("\nEverything needed is in order.")
        else:
            print_text(f"\nNeeds attention: {', '.join(broken_names)}.")
    if not is_healthy:
        raise typer.Exit(1)
