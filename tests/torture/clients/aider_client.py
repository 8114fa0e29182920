"""Script aider: a chat without files, by a person who only asks questions."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    os.environ |= {"OPENAI_API_BASE": f"{job['url']}/v1", "OPENAI_API_KEY": "any"}
    os.environ |= {"ANTHROPIC_API_BASE": job["url"], "ANTHROPIC_API_KEY": "any"}
    from aider.coders import Coder  # noqa: PLC0415  after its settings
    from aider.io import InputOutput  # noqa: PLC0415  after its settings
    from aider.models import Model  # noqa: PLC0415  after its settings

    family = "anthropic" if job["api"] == "anthropic" else "openai"
    model: Any = Model(f"{family}/{job['model']}")
    io = InputOutput(yes=True, pretty=False, fancy_input=False)
    coder: Any = Coder.create(
        main_model=model, edit_format="ask", io=io, use_git=False, map_tokens=0
    )
    answers = []
    for text in job["texts"]:
        coder.run(with_message=text)
        answers.append(coder.partial_response_content)
    print()
    print(json.dumps(answers))


main()
