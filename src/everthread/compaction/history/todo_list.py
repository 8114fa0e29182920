"""The agent's to-do list, read from the calls that set it or change it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from everthread.compaction.history.tool_calls import CallEffect
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line

_TODO_TEXT_FIELDS = ("content", "step", "title", "task", "text", "description")
_CREATED_TASK_PATTERN = re.compile(r"\bTask #(\d{1,6}) created\b")


def read_todo(effect: CallEffect) -> list[dict[str, str]]:
    """Return the to-do list that a call sets, or an empty list."""
    items = (
        effect.arguments.get("todos")
        or effect.arguments.get("plan")
        or effect.arguments.get("items")
    )
    if (
        not isinstance(items, list)
        or not items
        or not all(isinstance(item, Mapping) for item in items)
    ):
        return []
    todo = []
    for item in items:
        text = next(
            (item[name] for name in _TODO_TEXT_FIELDS if isinstance(item.get(name), str)),
            "",
        )
        status = "done" if item.get("done") else ""
        if isinstance(item.get("status"), str):
            status = item["status"]
        if text:
            todo.append(
                {
                    "text": clip_words(one_line(text), 200),
                    "status": clip_words(one_line(status), 20),
                }
            )
    return todo[:40] if any(entry["status"] for entry in todo) else []


def update_todo(todo: list[dict[str, str]], effect: CallEffect) -> list[dict[str, str]]:
    """Return the to-do list after a call that may set it, add a task to it or change the status of one."""
    if items := read_todo(effect):
        return items
    change = read_task_change(effect)
    if change is None:
        return todo
    number = change["text"].partition(" ")[0]
    for index, item in enumerate(todo):
        if item["text"].partition(" ")[0] == number:
            text = item["text"]
            return [*todo[:index], {**change, "text": text}, *todo[index + 1 :]]
    return [*todo, change] if " " in change["text"] else todo


def read_task_change(effect: CallEffect) -> dict[str, str] | None:
    """Return the task that a call creates or changes, with its number before its text, or None for other calls.

    A changed task has no text.
    """
    subject = effect.arguments.get("subject")
    created = _CREATED_TASK_PATTERN.search(effect.outcome) if subject else None
    if created and isinstance(subject, str):
        text = clip_words(one_line(subject), 200)
        return {"text": f"#{created[1]} {text}", "status": "pending"}
    number = effect.arguments.get("task_id")
    status = effect.arguments.get("status")
    if isinstance(number, str | int) and isinstance(status, str) and not effect.failed:
        return {"text": f"#{number}", "status": clip_words(one_line(status), 20)}
    return None
