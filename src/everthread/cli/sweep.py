"""`everthread lab sweep`: which settings cost how much, and keep how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.listed import names, shares
from everthread.cli.output import console, money, print_json, print_table, visible
from everthread.cli.progress import progress_of, write_page

if TYPE_CHECKING:
    from everthread.lab.sweep import Point, Sweep


def sweep(
    files: Annotated[list[str], typer.Argument(help="Recorded conversations, as `everthread replay` takes them.")],
    thresholds: Annotated[
        str, typer.Option(metavar="PART[,…]", help="Compact from these parts of the window on.")
    ] = "0.3,0.5,0.7",
    ratios: Annotated[
        str | None, typer.Option(metavar="PART[,…]", help="Keep these parts of the threshold as the end.")
    ] = None,
    engines: Annotated[str | None, typer.Option(metavar="NAME[,…]", help="Context engines.")] = None,
    models: Annotated[
        str | None, typer.Option(metavar="NAME[,…]", help="Who is asked. Default: whom each log names.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1_000, help="The window, in tokens. Default: the model's.")] = None,
    recall: Annotated[
        bool | None, typer.Option("--recall/--no-recall", help="Inject what is recalled. Default: as configured.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes. Default: one a processor.")] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with the trade-off here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every setting, every conversation.")] = False,
) -> None:
    """Replay conversations at a grid of settings: dollars, compactions, facts, and the best setting for each model.

    Nothing is sent anywhere: the recorded answers are the model's, the provider's cache and prices are simulated.
    """
    from everthread.cli.replay import chosen_options
    from everthread.config import load_config
    from everthread.lab.logs.reading import read_log
    from everthread.lab.sweep import sweep as swept
    from everthread.lab.sweep_page import sweep_page

    config = load_config()
    options = chosen_options(None, None, recall)
    asked_thresholds = shares(thresholds, "--thresholds", least=0.05, most=0.95)
    asked_ratios = shares(ratios, "--ratios", least=0.1, most=0.8) if ratios else [options.target_ratio]
    asked_engines = names(engines or config.context.engine, "--engines")
    asked_models = names(models, "--models") if models else [None]
    logs = [read_log(file) for file in files]
    with progress_of(1) as progress:
        found = swept(
            logs, thresholds=asked_thresholds, ratios=asked_ratios, engines=asked_engines, models=asked_models,
            window=window or config.model.context_length, options=options, engine_options=config.engines,
            workers=workers, progress=progress(0, "replays"),
        )  # fmt: skip
    if html is not None:
        write_page(html, sweep_page(found))
    if as_json:
        print_json(found.as_dict())
        return
    for model in found.models:
        _print(found, model)
    if html is not None:
        _say(f"The page with the trade-off: {html}")


def _print(found: Sweep, model: str) -> None:
    best, front = found.best(model), found.front(model)
    heads = [
        "engine", "threshold>", "ratio>", "dollars>", "prompt tokens>", "compactions>", "peak>", "facts in context>",
        "or by search>", "",
    ]  # fmt: skip
    points = found.of(model)
    count = len(points[0].runs)
    rows = [_row(point, best, front) for point in points]
    print_table(f"{model}, {count:,} conversation{'' if count == 1 else 's'}", heads, rows)
    if best is None:
        _say("No setting got every conversation to its end; use a larger --window or lower --thresholds.")
    else:
        _say(f"Best for {model}: {best.setting} (the cheapest of those that keep nearly as many facts as any).")


def _row(point: Point, best: Point | None, front: list[Point]) -> tuple[object, ...]:
    remark = "best" if point is best else "not beaten" if any(point is other for other in front) else ""
    if point.refused:
        remark = f"{point.refused} refused"
    setting = point.setting
    return (
        setting.engine, f"{setting.threshold:g}", f"{setting.ratio:g}", money(point.cost), point.prompt_tokens,
        point.compactions, point.peak, f"{point.retained:.1%}", f"{point.known:.1%}", remark,
    )  # fmt: skip


def _say(text: str) -> None:
    console.print(visible(text), markup=False, soft_wrap=True)
