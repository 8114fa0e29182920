"""Replays as one page that needs nothing else: no server, no network. Figures, charts and tables of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate
from string import Template

from everthread._version import __version__
from everthread.gateway.dashboard.charts import Chart, Limit, Line, Mark, Piece, bar, draw
from everthread.gateway.dashboard.text import clean, dollars, line_of, part, summary_sections
from everthread.lab.replay.result import Facts, Replay, Way, total

STYLES = {"everthread": "a", "uncached": "b", "cached": "c", "truncated": "d"}
MOST_FACTS = 400
_PAGE = Template(
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'\">\n<title>$title</title>\n<style>\n$style</style>\n</head>\n<body>\n<main>\n"
    "<h1>$title</h1>\n"
    '<p class="soft">$told</p>\n$body\n'
    "<footer>Everthread $version</footer>\n</main>\n<script>\n$script</script>\n</body>\n</html>\n"
)


_TOLD = (
    "Recorded conversations, played again through Everthread with the providers\u2019 cache rules and the models\u2019 "
    "prices. Summaries are extracts; nothing was sent anywhere."
)


def page(replays: Sequence[Replay], *, command: str = "", date: str = "", uncached: bool = False) -> str:
    """One HTML page with everything in it. `uncached`: also the way without any caching."""
    title = "Replay" if len(replays) == 1 else f"{len(replays)} replays"
    made = "".join(f'<p class="soft">{words}</p>' for words in _made(command, date))
    whole = _overview(replays) if len(replays) > 1 else ""
    sections = (_section(replay, number, uncached=uncached) for number, replay in enumerate(replays, 1))
    return framed(title, _TOLD, "\n".join([made, whole, *sections]))


def _made(command: str, date: str) -> Iterator[str]:
    if date:
        yield escape(date)
    if command:
        yield f"<code>{escape(clean(command))}</code>"


def _overview(replays: Sequence[Replay]) -> str:
    """All conversations in one table, and what was saved in all."""
    rows = [
        (
            f'<a href="#replay-{number}">{escape(clean(one.source))}</a>', f"{len(one.ours.calls):,}",
            f"{one.ours.peak:,}", f"{len(one.compactions):,}", dollars(one.ours.cost),
            part(one.saved(one.way("cached"))), "" if one.way("cached").refused is None else "yes",
            part(_known(one)) if _known(one) is not None else "\u2013",
        )
        for number, one in enumerate(replays, 1)
    ]  # fmt: skip
    heads = ("conversation", "calls", "peak", "compactions", "in all", "saved", "past the window", "facts in context")
    return f"{_headline(replays)}{table('All conversations', '', heads, rows, raw=0)}"


def _known(replay: Replay) -> float | None:
    facts = replay.ours.facts
    return facts.retained / facts.total if facts is not None and facts.total else None


def _headline(replays: Sequence[Replay]) -> str:
    """What compaction itself saves, against the cache alone, over the calls that both answered."""
    pairs = [(one, one.way("cached")) for one in replays]
    counts = [min(len(way.calls), len(one.ours.calls)) for one, way in pairs]
    ours = total(one.ours.cost_of_first(count) for (one, _), count in zip(pairs, counts, strict=True))
    theirs = total(way.cost_of_first(count) for (_, way), count in zip(pairs, counts, strict=True))
    beyond = sum(len(one.ours.calls) - count for (one, _), count in zip(pairs, counts, strict=True))
    more = f"; {beyond:,} more calls would not have fitted into the window" if beyond else ""
    if ours is None or not theirs:
        figure, words = "unknown", f"saved by compaction: the model has no price in the table{more}"
    else:
        figure = dollars(theirs - ours)
        words = (
            f"saved by compaction: {part(float(1 - ours / theirs))} of the {dollars(theirs)} that the same "
            f"{sum(counts):,} calls cost with caching alone{more}"
        )
    calls, peak = sum(len(one.ours.calls) for one in replays), max(one.ours.peak for one in replays)
    compactions = sum(len(one.compactions) for one in replays)
    shown = [
        (f"{calls:,}", "calls answered"),
        (f"{peak:,}", "tokens at most"),
        (f"{compactions:,}", "compactions"),
        (dollars(total(one.ours.cost for one in replays)), "in all"),
    ]
    facts = [one.ours.facts for one in replays if one.ours.facts is not None and one.ours.facts.total]
    if facts:
        share = sum(one.retained for one in facts) / sum(one.total for one in facts)
        shown.append((part(share), "of the facts still in the context"))
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(what)}</span></li>" for value, what in shown)
    lead = f'<li class="lead"><b>{escape(figure)}</b><span>{escape(words)}</span></li>'
    return f'<ul class="figures">{lead}{items}</ul>'


def framed(title: str, told: str, body: str) -> str:
    """A page around markup, with its style and its script."""
    static = files("everthread.gateway.dashboard") / "static"
    return _PAGE.substitute(
        title=f"Everthread: {escape(title)}",
        told=escape(told),
        style=(static / "style.css").read_text("utf-8"),
        script=(static / "charts.js").read_text("utf-8"),
        body=body,
        version=__version__,
    )


def _section(replay: Replay, number: int, *, uncached: bool) -> str:
    ways = [way for way in replay.ways if uncached or way.name != "uncached"]
    charts = [_context(replay, number), _costs(ways, number), _cache(replay, number)]
    drawn = "\n".join(f"<h3>{escape(chart.title)}</h3>{draw(chart)}" for chart in charts if chart.lines)
    unpriced = "" if charts[1].lines else "<p>What this costs is unknown: the model has no price in the table.</p>"
    notes = "".join(f"<li>{escape(clean(note))}</li>" for note in replay.notes)
    return (
        f'<section id="replay-{number}" aria-labelledby="name-{number}">'
        f'<h2 id="name-{number}">{escape(clean(replay.source))}</h2>'
        f'<p class="soft">{escape(replay.model)}, window {replay.window:,}, compaction from {replay.threshold:,} '
        f"tokens, engine {escape(replay.engine)}; times: {escape(replay.timed)}.</p>{_headline([replay])}{drawn}"
        f"{unpriced}{_ways(replay, ways)}{_compactions(replay)}{_summaries(replay, number)}{_misses(replay)}"
        f"{_facts(replay)}{f'<h3>Notes</h3><ul>{notes}</ul>' if notes else ''}</section>"
    )


def _summaries(replay: Replay, number: int) -> str:
    """Every summary, to be read."""
    opened = [made for made in replay.compactions if made.summary]
    return "".join(
        f'<details id="summary-{number}-{at}"><summary>Summary before call {made.call + 1:,}</summary>'
        f'<div class="card summary-text">{_sections(made.summary)}</div></details>'
        for at, made in enumerate(opened, 1)
    )


def _sections(text: str) -> str:
    tags = {"code": "code", "strong": "b"}
    parts = []
    for section in summary_sections(text):
        lines = "".join(
            f"<li{' class=item' if line.item else ''} dir=auto>"
            + "".join(
                f"<{tags[kind]}>{escape(words)}</{tags[kind]}>" if kind in tags else escape(words)
                for kind, words in line.pieces
            )
            + "</li>"
            for line in section.lines
        )
        parts.append(f"{f'<h4>{escape(section.name)}</h4>' if section.name else ''}<ul>{lines}</ul>")
    return "".join(parts)


def _context(replay: Replay, number: int) -> Chart:
    shown = [way for way in replay.ways if way.name != "uncached"]
    lines = [Line(way.what, STYLES[way.name], [call.use.prompt for call in way.calls]) for way in shown]
    marks = [
        Mark(
            made.call, f"compaction before call {made.call + 1}: {made.tokens_before:,} to {made.tokens_after:,} tokens"
        )
        for made in replay.compactions
    ]
    told = (
        f"Tokens of each request. Ours has at most {replay.ours.peak:,} of a window of {replay.window:,} and is "
        f"compacted {len(replay.compactions)} times."
    )
    limits = [Limit("window", replay.window), Limit("compaction from here on", replay.threshold)]
    return Chart(f"context-{number}", "Context, call by call", told, "tokens", lines, limits, marks)


def _costs(ways: Sequence[Way], number: int) -> Chart:
    known = [way for way in ways if way.cost is not None]
    lines = [
        Line(way.what, STYLES[way.name], [*accumulate(float(call.cost or 0) for call in way.calls)]) for way in known
    ]
    told = "Dollars spent up to each call. " + " ".join(f"{way.what}: {dollars(way.cost)}." for way in known)
    return Chart(f"cost-{number}", "Cost so far", told, "$", lines)


def _cache(replay: Replay, number: int) -> Chart:
    calls = replay.ours.calls
    lines = [
        Line("read from the cache", "read", [call.use.read for call in calls]),
        Line("written to it", "write", [call.use.write for call in calls]),
        Line("neither", "none", [call.use.input for call in calls]),
    ]
    marks = [
        Mark(at, f"miss before call {at + 1}: {call.miss}", "miss") for at, call in enumerate(calls) if call.missed
    ]
    told = f"What became of each prompt\u2019s tokens. {len(marks)} calls read less than the one before had left."
    return Chart(f"cache-{number}", "What the cache held", told, "tokens", lines, (), marks, stacked=True)


def _ways(replay: Replay, ways: Sequence[Way]) -> str:
    rows = [
        (
            way.what, _answered(way), f"{way.peak:,}", f"{way.mean:,.0f}", f"{way.read:,}", f"{way.written:,}",
            f"{way.uncached:,}", dollars(way.input_cost), dollars(way.cost),
            "" if way is replay.ours else part(replay.saved(way)),
        )
        for way in ways
    ]  # fmt: skip
    heads = ("", "calls", "peak", "mean", "read", "written", "uncached", "input", "in all", "saved")
    told = "Dollars with the same prices; \u201csaved\u201d over the calls that both answered."
    return table("Ways compared", told, heads, rows)


def _answered(way: Way) -> str:
    return f"{len(way.calls):,}" if way.refused is None else f"{len(way.calls):,}, then refused"


def _compactions(replay: Replay) -> str:
    rows = [
        (
            f"before call {made.call + 1:,}", made.reason, f"{made.tokens_before:,} \u2192 {made.tokens_after:,}",
            f"{made.messages_before:,} \u2192 {made.messages_after:,}", made.author,
        )
        for made in replay.compactions
    ]  # fmt: skip
    return table("Compactions", "", ("when", "why", "tokens", "messages", "written by"), rows) if rows else ""


def _misses(replay: Replay) -> str:
    missed: dict[str, int] = {}
    for call in replay.ours.calls:
        missed[call.miss] = missed.get(call.miss, 0) + call.missed
    rows = [(cause, f"{count:,}", f"{missed[cause]:,}") for cause, count in replay.ours.misses.most_common()]
    told = "Calls that read less from the cache than the call before had left there."
    return table("Cache misses", told, ("cause", "calls", "tokens"), rows)


def _facts(replay: Replay) -> str:
    facts = replay.ours.facts
    if facts is None or not facts.total:
        return ""
    dropped = replay.way("truncated").facts
    rows = []
    for kind, (kept, found, lost) in facts.kinds.items():
        theirs = dropped.kinds[kind][0] if dropped else 0
        rows.append((kind, f"{kept:,}", f"{found:,}", f"{lost:,}", fact_bar(kept, found, lost), f"{theirs:,}"))
    heads = ("what was said", "in the context", "found by recall", "lost", "", "left by truncation")
    return table("Facts at the end", "", heads, rows, raw=4) + _named_facts(facts)


def _named_facts(facts: Facts) -> str:
    """The facts by name: those that left the context first, for they are what a reader wants to check."""
    places = ("in the context", "found by recall", "lost")
    named = sorted(facts.named, key=lambda fact: -fact[2])[:MOST_FACTS]
    rows = [(line_of(text, 120), kind, places[place]) for kind, text, place in named]
    left = len(facts.named) - len(rows)
    more = f'<p class="soft">{left:,} more are in the context.</p>' if left else ""
    listed = table("Facts by name", "", ("fact", "kind", "at the end"), rows)
    return f"<details><summary>The facts by name</summary>{listed}{more}</details>" if rows else ""


def fact_bar(kept: int, found: int, lost: int) -> str:
    """Of a kind of facts: what is in the context, found by search, lost."""
    parts = (("kept", kept), ("found-part", found), ("lost", lost))
    pieces = [Piece(style, f"{count:,}", count) for style, count in parts if count]
    return bar(pieces, kept + found + lost, f"{kept} of {kept + found + lost} in the context")


def table(title: str, told: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, raw: int | None = None) -> str:
    """A table; column `raw` is markup already."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if at == raw else escape(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    caption = f"<caption>{escape(told)}</caption>" if told else ""
    return (
        f'<h3>{escape(title)}</h3><div class="scroll" role="region" aria-label="{escape(title)}" tabindex="0"><table>'
        f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
