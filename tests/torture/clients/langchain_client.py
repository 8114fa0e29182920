"""Send a growing history to LangChain's chat models, invoked and streamed in turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    known: dict[str, Any] = {"model": job["model"], "api_key": "any", "max_retries": 0}
    if job["api"] == "anthropic":
        model: Any = ChatAnthropic(**known, base_url=job["url"], max_tokens=500)
    else:
        responses = job["api"] == "openai_responses"
        model = ChatOpenAI(**known, base_url=f"{job['url']}/v1", use_responses_api=responses)
    history: list[BaseMessage] = [SystemMessage(job["system"])]
    answers = []
    for number, text in enumerate(job["texts"]):
        history.append(HumanMessage(text))
        if number % 2:
            answer: Any = AIMessage("")
            pieces = list(model.stream(history))
            answer = sum(pieces[1:], pieces[0])
        else:
            answer = model.invoke(history)
        history.append(answer)
        answers.append(answer.text)
    print(json.dumps(answers))


main()
