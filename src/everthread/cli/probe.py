"""`everthread lab probe`: what is still known after compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.listed import names, shares, whole_numbers
from everthread.cli.output import console, counted, print_json, print_table, visible
from everthread.cli.progress import progress_of
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.lab.probe import Chains, Probed


def probe(
    files: Annotated[
        list[str] | None, typer.Argument(help="Transcripts, or dialogues with questions as LoCoMo has them.")
    ] = None,
    questions: Annotated[
        str | None, typer.Option(metavar="FILE", help="Questions with evidence, for the one transcript given.")
    ] = None,
    canaries: Annotated[bool, typer.Option("--canaries", help="Plant made-up facts in a made-up session.")] = False,
    window: Annotated[
        int | None,
        typer.Option(min=1_000, help="The window, in tokens. Default: half the conversation; with canaries 32,000."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME[,…]", help="Default: as configured; with canaries both.")
    ] = None,
    k: Annotated[str, typer.Option("--k", metavar="N[,…]", help="How many results of recall are looked at.")] = "5,10",
    chain: Annotated[
        str | None,
        typer.Option(metavar="N[..M]", help="So many compactions, however large the window; with canaries 1..10."),
    ] = None,
    depth: Annotated[
        str | None, typer.Option(metavar="PART[,…]", help="Where canaries are planted. Default: 0.1,0.5,0.9.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same canaries.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every question, every canary.")] = False,
) -> None:
    """Ask after compaction: is the evidence in the context, else among the first results of recall?

    Nothing is sent anywhere: conversations are held on a store of their own, summaries are extracts.
    """
    if canaries == bool(files):
        raise InputError("give files to probe, or --canaries" + (", not both" if files else ""))
    firsts = whole_numbers(k, "--k", most=100)
    if canaries:
        if questions is not None:
            raise InputError("--questions goes with a transcript; canaries have their own")
        lengths = whole_numbers(chain or "1..10", "--chain", most=50)
        depths = shares(depth or "0.1,0.5,0.9", "--depth", least=0, most=1)
        engines = names(engine or "compressor,lossless", "--engine")
        found = _canaries(engines, depths, lengths, window, max(firsts), seed)
        if as_json:
            print_json([one.as_dict() for one in found])
            return
        for one in found:
            _print_chains(one)
        return
    if depth is not None:
        raise InputError("--depth says where canaries are planted; give --canaries too")
    _files(files or [], questions, window, engine, firsts, chain, as_json=as_json)


def _files(
    files: list[str], questions: str | None, window: int | None, engine: str | None, firsts: list[int],
    chain: str | None, *, as_json: bool,
) -> None:  # fmt: skip
    from everthread.config import load_config
    from everthread.factory.conversations import session_options
    from everthread.lab.probe import probe as ask
    from everthread.lab.probe import read_cases
    from everthread.lab.probe.result import together

    if questions is not None and len(files) > 1:
        raise InputError(f"--questions belongs to one transcript; {len(files)} were given")
    lengths = whole_numbers(chain, "--chain", most=50) if chain else [None]
    if len(lengths) > 1:
        raise InputError(f"--chain {chain!r}: a transcript is compacted a number of times; spans are for canaries")
    config = load_config()
    engines = names(engine or config.context.engine, "--engine")
    cases = [case for file in files for case in read_cases(file, questions)]
    runs = [(case, name) for name in engines for case in cases]
    found = []
    with progress_of(len(runs)) as progress:
        for number, (case, name) in enumerate(runs):
            found.append(
                ask(
                    case, window=window, chain=lengths[0], engine=name, firsts=firsts,
                    engine_options=dict(config.engines.get(name, {})), options=session_options(config),
                    progress=progress(number, case.source),
                )
            )  # fmt: skip
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    for one in found:
        _print(one)
    if len(cases) > 1:
        for name in engines:
            _print(together([one for one in found if one.engine == name]), each=False)


def _canaries(
    engines: list[str], depths: list[float], lengths: list[int], window: int | None, first: int, seed: int
) -> list[Chains]:
    from everthread.config import load_config
    from everthread.factory.conversations import session_options
    from everthread.lab.probe import chains
    from everthread.lab.probe.chains import WINDOW

    config = load_config()
    found = []
    with progress_of(len(engines)) as progress:
        for number, name in enumerate(engines):
            found.append(
                chains(
                    engine=name, engine_options=dict(config.engines.get(name, {})), depths=depths, lengths=lengths,
                    window=window or WINDOW, options=session_options(config), first=first, seed=seed,
                    progress=progress(number, name),
                )
            )  # fmt: skip
    return found


def _print(found: Probed, *, each: bool = True) -> None:
    sizes = f"{found.whole:,} tokens, {found.context:,} in view after {counted(len(found.compactions), 'compaction')}"
    window = f", window {found.window:,}" if each else ""
    rows = [_row(kind, found, kind) for kind in found.kinds]
    if len(rows) > 1 or not rows:
        rows.append(_row("all", found, None))
    heads = ["category", "questions>", "in the context>"]
    heads += [f"or in the first {first}>" for first in found.firsts] + ["lost>"]
    heads += [f"tokens of {first}>" for first in found.firsts]
    print_table(f"{found.source}, {found.engine}: {sizes}{window}", heads, rows)
    for note in found.notes:
        _say(f"Note: {note}")
    _say(f"Probed in {found.seconds:.1f} s.")


def _row(name: str, found: Probed, kind: str | None) -> tuple[object, ...]:
    within = [found.within(first, kind) for first in found.firsts]
    return (
        name, len(found.of(kind)), f"{found.in_context(kind):.1%}", *(f"{part:.1%}" for part in within),
        f"{1 - within[-1]:.1%}", *(round(found.cost(first, kind)) for first in found.firsts),
    )  # fmt: skip


def _print_chains(found: Chains) -> None:
    from everthread.lab.probe import CANARIES
    from everthread.lab.probe.chains import CONTEXT, tally

    def cell(counts: dict[str, int]) -> str:
        wrong = f" ✗{counts['misleading']}" if counts["misleading"] else ""
        return "/".join(str(count) for name, count in counts.items() if name != "misleading") + wrong

    heads = ["canaries", *(f"{length}>" for length in found.lengths)]
    rows: list[tuple[object, ...]] = [
        (kind, *(cell(tally(found.of(kind=kind, chain=length))) for length in found.lengths)) for kind in CANARIES
    ]
    rows += [
        (f"at depth {depth:g}", *(cell(tally(found.of(depth=depth, chain=length))) for length in found.lengths))
        for depth in found.depths
    ]
    rows.append(("all", *(cell(tally(found.of(chain=length))) for length in found.lengths)))
    rows.append(("tokens in view", *(found.compactions[length - 1].tokens_after for length in found.lengths)))
    searched = [[one for one in found.of(chain=length) if one.where != CONTEXT] for length in found.lengths]
    rows.append(
        (
            "tokens of a recall",
            *(round(sum(o.recall_tokens for o in some) / len(some)) if some else 0 for some in searched),
        )
    )
    title = f"{found.engine}, window {found.window:,}: in the context / in the first {found.first} of recall / lost"
    print_table(f"{title}, after so many compactions; ✗ what is told misleads", heads, rows)
    for note in found.notes:
        _say(f"Note: {note}")
    _say(f"Probed in {found.seconds:.1f} s.")


def _say(text: str) -> None:
    console.print(visible(text), markup=False, soft_wrap=True)
