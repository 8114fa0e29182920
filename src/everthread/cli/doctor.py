"""`everthread doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses

import typer
from rich.text import Text

from everthread.cli.doctoring.checkup import checkup
from everthread.cli.doctoring.finding import MARKS, Finding
from everthread.cli.output import console, print_json, visible
from everthread.cli.running import AsJson


def doctor(
    as_json: AsJson = False,
) -> None:
    """Say what works here and what does not, and what to do about it. Exit code 1 if something needed is broken."""
    found = asyncio.run(checkup())
    healthy = all(finding.state != "broken" for finding in found)
    if as_json:
        print_json({"healthy": healthy, "findings": [dataclasses.asdict(finding) for finding in found]})
    else:
        width = max(len(finding.what) for finding in found)
        for finding in found:
            console.print(_line(finding, width), soft_wrap=True)
        broken = [finding.what for finding in found if finding.state == "broken"]
        console.print(Text(f"\nNot in order: {', '.join(broken)}." if broken else "\nEverything needed is in order."))
    if not healthy:
        raise typer.Exit(1)


def _line(finding: Finding, width: int) -> Text:
    mark, style = MARKS[finding.state]
    line = Text.assemble((mark, style), f" {finding.what:<{width}}  ", visible(finding.text).replace("\n", "\n    "))
    if finding.advice:
        line.append(f"\n  {'':<{width}}  → {visible(finding.advice)}", "bold")
    return line
