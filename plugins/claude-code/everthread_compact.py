#!/usr/bin/env python3
"""Claude Code: what the user said and what was done come back after every compaction, made by a running gateway.

Two hooks call it. `PreCompact` sends the transcript to `POST /v1/compact` and keeps the answer; `SessionStart` after a
compaction prints it, which Claude Code puts into the new context. EVERTHREAD_URL names the gateway,
EVERTHREAD_API_KEY a key of it. Where it does not answer, nothing is added.
"""

import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

URL = os.environ.get("EVERTHREAD_URL", "http://127.0.0.1:8484")
KEY = os.environ.get("EVERTHREAD_API_KEY", "everthread")
WINDOW = 32_000
"""What comes back fits easily into a window of so many tokens."""
SECONDS = 80
LEAD = "From before the compaction, made by Everthread: what the user said, word for word, and what was done."


def messages(transcript):
    """The conversation of a transcript in Anthropic's protocol; the lines of one answer are one message."""
    said, model, last = [], "claude", None
    for line in Path(transcript).read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("type") not in ("user", "assistant") or entry.get("isSidechain") or entry.get("isMeta"):
            continue
        message = entry["message"]
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts = [part for part in parts if part.get("type") in ("text", "tool_use", "tool_result")]
        model = message.get("model") or model
        if not parts:
            continue
        answer = message.get("id")
        if said and said[-1]["role"] == message["role"] and (message["role"] == "user" or answer == last):
            said[-1]["content"] += parts
        else:
            said.append({"role": message["role"], "content": list(parts)})
        last = answer
    return said, model


def shown(message):
    """A message of the answer as a text."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [part.get("text") or json.dumps(part.get("input", part.get("content"))) for part in parts]
    return f"[{message['role']}] " + "\n".join(texts)


def main():
    given = json.load(sys.stdin)
    kept = Path(tempfile.gettempdir()) / f"everthread-{os.getuid()}-{given['session_id']}.txt"
    if given["hook_event_name"] == "SessionStart":
        if given.get("source") == "compact" and kept.exists():
            print(kept.read_text("utf-8"))
            kept.unlink()
        return
    said, model = messages(given["transcript_path"])
    body = {"model": model, "max_tokens": 1024, "system": "Claude Code", "messages": said, "window": WINDOW}
    headers = {"content-type": "application/json", "x-api-key": KEY, "anthropic-version": "2023-06-01"}
    asked = urllib.request.Request(f"{URL}/v1/compact", json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310  the person names the gateway
        made = json.load(answer)
    if made["receipt"]["changed"]:
        with os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{LEAD}\n\n" + "\n\n".join(map(shown, made["messages"])))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001  a hook that fails must not stop the compaction
        print(f"everthread: {error}", file=sys.stderr)
