"""Run Headroom's package in its own environment: it answers each JSON line with one, until the input ends.

    {"do": "compress", "window": N, "messages": […]}
        `headroom.compress` with its defaults: {"messages": […]}, the same messages, some of them smaller.

Messages are OpenAI chat dicts with an `id` and the `tokens` they have.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from headroom import compress

MODEL = "claude-sonnet-4-5-20250929"


def main() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        peer_request = json.loads(line)
        messages: list[dict[str, Any]] = [
            {key: value for key, value in message.items() if key not in ("id", "tokens")}
            for message in peer_request["messages"]
        ]
        made = (
            compress(
                messages, model=MODEL, model_limit=peer_request.get("window", 200_000)
            ).messages
            if messages
            else []
        )
        sys.stdout.write(json.dumps({"messages": made}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
