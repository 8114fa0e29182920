"""`everthread replay FILE…`: recorded conversations, played again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.options import number_option
from everthread.cli.output import money, print_json, print_table, progress_of, say, write_page
from everthread.core.messages import counted
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.conversation.options import SessionOptions
    from everthread.lab.importers.log import Log
    from everthread.lab.replay.result import Replay, Way


def replay(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Conversations: JSON, JSONL, exports, logs of Claude Code, Codex, pi, opencode; `-`: standard input."
        ),
    ],
    window: Annotated[int | None, number_option(least=1_000, text="The model's window, in tokens.")] = None,
    model: Annotated[str | None, typer.Option(help="Who is asked. Default: whom the log names.")] = None,
    engine: Annotated[str | None, typer.Option(help="The context engine. Default: as configured.")] = None,
    threshold: Annotated[
        float | None, number_option(least=0.05, most=0.95, text="Compact from this part of the window on, such as 0.3.")
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(metavar="15,30,50", help="Compare thresholds, in per cent of the window: dollars, context, kept."),
    ] = None,
    economics: Annotated[
        bool | None,
        typer.Option("--economics/--no-economics", help="Weigh in dollars when to compact. Default: as configured."),
    ] = None,
    ttl: Annotated[str | None, typer.Option(help="How long Claude's cache is to remember: 5m or 1h.")] = None,
    pause: Annotated[
        float, number_option(text="Seconds before each message of a person, where the log has no times.")
    ] = 60.0,
    step: Annotated[float, number_option(text="Seconds before each result of a tool, likewise.")] = 15.0,
    recall: Annotated[
        bool | None, typer.Option("--recall/--no-recall", help="Inject what is recalled. Default: as configured.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with charts here.")] = None,
    uncached: Annotated[
        bool, typer.Option("--uncached", help="Also show the way without compaction and without caching.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every call of every way.")] = False,
) -> None:
    """Play recorded conversations again: context, compactions, cache, cost and what is still known.

    Nothing is sent anywhere: the recorded answers are the model's, the provider's cache and prices are simulated.
    """
    from everthread.config import load_config
    from everthread.lab.importers.reader import read_log
    from everthread.lab.replay import replay as play
    from everthread.lab.replay.report import page

    config = load_config()
    options = chosen_options(threshold, ttl, recall, economics)
    name = engine or config.context.engine
    how: dict[str, Any] = {
        "model": model, "window": window or config.model.context_length, "engine": name,
        "engine_options": dict(config.engines.get(name, {})), "pause": pause, "step": step,
    }  # fmt: skip
    shares = threshold_shares(thresholds) if thresholds is not None else []
    logs = [read_log(file) for file in files]
    if shares:
        compare(logs, shares, options, as_json=as_json, **how)
        return
    with progress_of(len(logs)) as progress:
        found = [
            play(log, options=options, progress=progress(number, log.source), **how) for number, log in enumerate(logs)
        ]
    if html is not None:
        command = f"everthread {shlex.join(sys.argv[1:])}"
        date = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
        write_page(html, page(found, command=command, date=date, uncached=uncached))
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    for one in found:
        _print(one, uncached=uncached)
    if len(found) > 1:
        _print_sums(found, uncached=uncached)
    if html is not None:
        say(f"The page with the charts: {html}")


def chosen_options(
    threshold: float | None, ttl: str | None, recall: bool | None, economics: bool | None = None
) -> SessionOptions:
    """The configuration, with what was asked for here."""
    from everthread.config import load_config
    from everthread.factory.conversation import session_options

    options = session_options(load_config())
    if threshold is not None:
        options = replace(options, threshold=threshold, threshold_tokens=None, models={})
    if economics is not None:
        options = replace(options, economics=economics)
    if ttl is not None:
        if ttl not in ("5m", "1h"):
            raise InputError(f"--ttl {ttl!r} is not allowed; it must be 5m or 1h")
        options = replace(options, cache_ttl=ttl)
    return options if recall is None else replace(options, recall=replace(options.recall, enabled=recall))


def threshold_shares(text: str) -> list[float]:
    """Per cent of the window, as they are typed: `15,25,30`."""
    try:
        shares = sorted({float(part) / 100 for part in text.split(",")})
    except ValueError:
        shares = [0.0]
    if not all(0.05 <= share <= 0.95 for share in shares):
        raise InputError(f"--thresholds {text!r} is not allowed; give per cent from 5 to 95, such as 15,30,50")
    return shares


def compare(
    logs: Sequence[Log], shares: Sequence[float], options: SessionOptions, *, as_json: bool, **how: Any
) -> None:
    """The same conversations at each threshold: what they cost, how large the context was, what was still known."""
    from everthread.lab.replay import replay as play

    found: dict[float, list[Replay]] = {share: [] for share in shares}
    with progress_of(len(logs) * len(shares)) as progress:
        for number, (share, log) in enumerate((share, log) for log in logs for share in shares):
            chosen = replace(options, threshold=share, threshold_tokens=None, models={})
            told = progress(number, f"{log.source} at {share:.0%}")
            found[share].append(play(log, options=chosen, compared=False, judged=True, progress=told, **how))
    rows = [(share, *_figures(one)) for share, one in found.items()]
    if as_json:
        print_json([dict(zip(("threshold", *FIGURES), row, strict=True)) for row in rows])
        return
    weighed = "weighed in dollars" if options.economics else "at the threshold only"
    title = f"{counted(len(logs), 'conversation')}, {found[shares[0]][0].model}, compaction {weighed}"
    print_table(
        title,
        ["threshold>", "dollars>", "mean context>", "peak>", "compactions>", "in context>", "by recall>", "lost>"],
        [_shown(row) for row in rows],
    )
    say(
        "Where each of the user's messages, files, commands, errors and ids is at the end: in the context, found by a "
        "search, or lost. "
        "Summaries are written without a model here; a model's would cost its own tokens."
    )


FIGURES = ("dollars", "mean_context", "peak", "compactions", "in_context", "by_recall", "lost")


def _figures(found: Sequence[Replay]) -> tuple[float | None, int, int, int, float, float, float]:
    from everthread.lab.replay.result import total

    ways = [one.ours for one in found]
    cost = total(way.cost for way in ways)
    calls = [call.use.prompt for way in ways for call in way.calls]
    facts = [way.facts for way in ways if way.facts is not None]
    known = max(sum(one.total for one in facts), 1)
    kept = (sum(getattr(one, name) for one in facts) / known for name in ("retained", "recoverable", "lost"))
    in_context, by_recall, lost = (round(part, 4) for part in kept)
    compactions = sum(len(one.compactions) for one in found)
    return (
        None if cost is None else round(float(cost), 4), round(sum(calls) / max(len(calls), 1)), max(calls, default=0),
        compactions, in_context, by_recall, lost,
    )  # fmt: skip


def _shown(row: tuple[Any, ...]) -> list[object]:
    share, dollars, mean, peak, compactions, *kept = row
    cost = money(None if dollars is None else Decimal(str(dollars)))
    return [f"{share:.0%}", cost, mean, peak, compactions, *(f"{part:.1%}" for part in kept)]


def _print(found: Replay, *, uncached: bool) -> None:
    ours = found.ours
    ways = [way for way in found.ways if uncached or way.name != "uncached"]
    calls = counted(len(ours.calls), "call")
    title = f"{found.source}: {calls}, {found.model}, window {found.window:,}, compaction from {found.threshold:,}"
    print_table(
        f"{title}, {found.engine}",
        [
            "way",
            "calls>",
            "peak>",
            "mean>",
            "cache read>",
            "written>",
            "uncached>",
            "input>",
            "in all>",
            "saved>",
        ],
        [_row(found, way) for way in ways],
    )
    saved = found.caching_saves()
    if uncached and saved is not None:
        say(f"Caching alone (system_and_3, no compaction) saves {saved:.1%} of the input's cost against no caching.")
    if found.recorded_cost is not None:
        say(f"The log itself states ${found.recorded_cost:,.2f} for these calls.")
    for way in ways:
        if way.refused is not None:
            say(f"{way.what}: call {way.refused + 1:,} did not fit into the window; the conversation ended there.")
    print_table(
        "Compactions" if found.compactions else "Compactions: none",
        ["before call>", "why", "tokens before>", "after>", "messages before>", "after>"],
        [
            (
                made.call + 1,
                made.reason,
                made.tokens_before,
                made.tokens_after,
                made.messages_before,
                made.messages_after,
            )
            for made in found.compactions
        ],
    )
    _print_misses(ours)
    _print_facts(found)
    for note in found.notes:
        say(f"Note: {note}")
    say(f"Replayed in {found.seconds:.1f} s; times: {found.timed}.")


def _row(found: Replay, way: Way) -> tuple[object, ...]:
    saved = None if way is found.ours else found.saved(way)
    return (
        way.what, f"{len(way.calls):,}" + ("" if way.refused is None else " ✗"), way.peak, round(way.mean), way.read,
        way.written, way.uncached, money(way.input_cost), money(way.cost), "" if saved is None else f"{saved:.1%}",
    )  # fmt: skip


def _print_misses(ours: Way) -> None:
    rows = [
        (cause, count, sum(call.missed for call in ours.calls if call.miss == cause))
        for cause, count in ours.misses.most_common()
    ]
    print_table("Cache misses", ["cause", "calls>", "tokens>"], rows)


def _print_facts(found: Replay) -> None:
    facts = found.ours.facts
    if facts is None or not facts.total:
        return
    dropped = found.way("truncated").facts
    rows = [(kind, *counts, dropped.kinds[kind][0] if dropped else "") for kind, counts in [*facts.kinds.items()]]
    kept = sum(counts[0] for counts in dropped.kinds.values()) if dropped else ""
    rows.append(("in all", facts.retained, facts.recoverable, facts.lost, kept))
    heads = ["what was said", "in the context>", "by recall>", "lost>", "left by truncation>"]
    print_table("Facts at the end", heads, rows)


def _print_sums(found: list[Replay], *, uncached: bool) -> None:
    from everthread.lab.replay.result import total

    names = [(way.name, way.what) for way in found[0].ways if uncached or way.name != "uncached"]
    rows = [
        (what, sum(len(one.way(name).calls) for one in found), money(total(one.way(name).cost for one in found)))
        for name, what in names
    ]
    print_table(f"All {len(found)} conversations", ["way", "calls>", "in all>"], rows)
