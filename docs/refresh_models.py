"""Write `core/data/models.json`: windows and prices of models that the package `genai-prices` does not know.

    python docs/refresh_models.py FOLDER_OF_PI_AI LITELLM_JSON

The first source is models.dev's table, as the npm package `@earendil-works/pi-ai` ships it (MIT). The second is
LiteLLM's `model_prices_and_context_window_backup.json` from PyPI (MIT).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everthread.core.costs.prices import find_listed_prices

TARGET = Path(__file__).parents[1] / "src" / "everthread" / "core" / "data" / "models.json"
MODELS_DEV = (
    "openai",
    "anthropic",
    "google",
    "xai",
    "deepseek",
    "mistral",
    "moonshotai",
    "zai",
    "minimax",
    "meta",
)
LITELLM = (
    "openai",
    "anthropic",
    "gemini",
    "xai",
    "deepseek",
    "mistral",
    "moonshot",
    "dashscope",
    "zai",
    "minimax",
)
_MILLION = 1_000_000


def read_models_dev(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for provider in MODELS_DEV:
        listed = json.loads(
            (folder / "dist" / "providers" / "data" / f"{provider}.json").read_text("utf-8")
        )
        for group in listed.values():
            for model in group.values() if isinstance(group, dict) else ():
                if isinstance(model, dict) and model.get("contextWindow") and model.get("cost"):
                    yield str(model["id"]), _entry_of_models_dev(model)


def _entry_of_models_dev(model: dict[str, Any]) -> dict[str, Any]:
    cost = model["cost"]
    prices = {
        "input": cost.get("input"),
        "output": cost.get("output"),
        "cache_read": cost.get("cacheRead"),
        "cache_write_5m": cost.get("cacheWrite"),
    }
    return _entry(model["contextWindow"], model.get("maxTokens"), prices, "models.dev")


def read_litellm(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, model in json.loads(file.read_text("utf-8")).items():
        if model.get("litellm_provider") not in LITELLM or model.get("mode") not in (
            "chat",
            "responses",
        ):
            continue
        prices = {
            "input": _per_million(model.get("input_cost_per_token")),
            "output": _per_million(model.get("output_cost_per_token")),
            "cache_read": _per_million(model.get("cache_read_input_token_cost")),
            "cache_write_5m": _per_million(model.get("cache_creation_input_token_cost")),
            "cache_write_1h": _per_million(model.get("cache_creation_input_token_cost_above_1hr")),
        }
        window = model.get("max_input_tokens")
        if isinstance(window, int):
            yield (
                name.rpartition("/")[2],
                _entry(window, model.get("max_output_tokens"), prices, "LiteLLM"),
            )


def _per_million(value: Any) -> float | None:
    return round(value * _MILLION, 6) if isinstance(value, int | float) else None


def _entry(window: int, output: Any, prices: dict[str, Any], source: str) -> dict[str, Any]:
    stated = {name: value for name, value in prices.items() if value}
    known_output = {"output": output} if isinstance(output, int) else {}
    return {"window": window, **known_output, "prices": stated, "source": source}


def main() -> None:
    folder, file = map(Path, sys.argv[1:3])
    now = datetime.now(UTC)
    models: dict[str, dict[str, Any]] = {}
    for name, entry in [*read_models_dev(folder), *read_litellm(file)]:
        if (
            find_listed_prices(name, time=now) is None
            and {"input", "output"} <= entry["prices"].keys()
        ):
            models.setdefault(name.lower(), entry)
    table: dict[str, Any] = {
        "date": now.date().isoformat(),
        "models": dict(sorted(models.items())),
    }
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in table["models"].items()
    ]
    body = ",\n".join(lines)
    TARGET.write_text(f'{{\n "date": "{table["date"]}",\n "models": {{\n{body}\n }}\n}}\n', "utf-8")
    print(f"{len(models)} models")


if __name__ == "__main__":
    main()
