"""What was said between user and assistant: the goal, the rules, questions with their answers, open requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from everthread.compaction.summarizers.extract_lines import Line, Scale, aged, once, recalled
from everthread.compaction.summarizers.extract_reading import Episode, Story
from everthread.compaction.summarizers.extract_text import READ_CHARS, opening, questions, said, spoken, trim
from everthread.compaction.summarizers.extract_wording import LATER
from everthread.core.notes import KEEP
from everthread.core.rules import Rule, active_rules, rules_of_message, settled
from everthread.core.topics import overlap

USER, REMEMBER = "User: ", "To remember: "
_GOALS = 12
"""More requests than these are no goal but a history, and that is told with what was done."""
_EARLIER = 0.6
_REPLY = 80
"""So short a message after a question answers it."""
_SAME = 0.6
"""So much of what a request is about must come up in a finished turn for it to be settled."""


def goal_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """What the user wants: the first request and the large later ones, in the user's own words."""
    known = recalled(previous)
    lines = [replace(line, weight=6.0 if place == 0 else line.weight) for place, line in enumerate(aged(known, 2.0))]
    asked = [episode for episode in story.episodes if episode.ask]
    for place, episode in enumerate(asked):
        first = place == 0 and not known
        if not first and questions(episode.ask) and not episode.changes:
            continue  # told with its answer
        ask = said(episode.ask, scale.request)
        size = len(ask)
        if first or size >= (40 if episode.ask.isascii() else 16):
            weight = 6.0 if first else min(size, 300) / 150 + story.recency(episode.start)
            lines.append(Line(ask, weight, episode.start))
    return sorted(once(lines), key=lambda line: -line.weight)[:_GOALS]


def rule_lines(story: Story, previous: str, told: Sequence[str]) -> list[Line]:
    """The user's rules that hold, word for word; those stated later in the place of those they replace.

    `told`: rules that stand elsewhere count, but are not told again.
    """
    rules: list[Rule] = []
    texts = [text for text in recalled(previous) if not text.endswith(":")]
    for place, text in enumerate(texts):
        found = rules_of_message({"role": "user", "content": text})
        rule = found[0] if found else Rule(text, "", "do", 0)
        rules.append(replace(rule, text=text, where=place - len(texts)))
    for where, facts in enumerate(story.facts):
        rules += (replace(rule, where=where) for rule in facts.rules)
    holding = (rule for rule in active_rules(settled(rules)) if rule.text not in told)
    return once(Line(rule.text, 5.0 + rule.where / 1e6, rule.where) for rule in holding)


def answered_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """Questions and what they were answered: the user's by the assistant, the assistant's by the user."""
    lines = aged(recalled(previous), _EARLIER)
    for episode in story.episodes:
        weight = story.recency(episode.start)
        if episode.reply_to and (len(episode.ask) < _REPLY or overlap(episode.reply_to, episode.ask)):
            text = f"Assistant asked: {said(episode.reply_to, scale.answer)} → user: {said(episode.ask, scale.answer)}"
            lines.append(Line(text, weight, episode.start))
        if episode.answer and not episode.changes and (asked := questions(episode.ask)):
            question = said(" ".join(asked), scale.answer)
            text = f"{question} → {opening(episode.answer, scale.answer)}"
            lines.append(Line(text, 1.2 * weight, episode.start))
    return once(lines)


def pending_lines(story: Story, previous: str, scale: Scale) -> list[Line]:
    """What the user put off, and what an earlier summary had open, unless a turn has dealt with it since.

    The latest requests are the active task, which is known apart.
    """
    lines = [line for line in aged(recalled(previous), 1.0) if not _settled(line.text, story.episodes)]
    for place, episode in enumerate(story.episodes):
        if LATER.search(episode.ask[:READ_CHARS]):
            wishes = (sentence.text for sentence in spoken(episode.ask) if LATER.search(sentence.text))
            rest = story.episodes[place + 1 :]
            lines += (
                Line(trim(wish, scale.request), 2.0, episode.start) for wish in wishes if not _settled(wish, rest)
            )
    return once(lines)


def _settled(request: str, episodes: Sequence[Episode]) -> bool:
    """Whether a request was answered in these turns; one that was being worked on, by the answer that comes first."""
    finished = [episode for episode in episodes if episode.answer]
    continued = bool(finished) and not finished[0].ask
    return continued or any(overlap(request, f"{episode.ask} {episode.answer}") >= _SAME for episode in finished)


def statement_lines(story: Story, scale: Scale) -> Iterator[Line]:
    """What the user asked to be remembered, and what was said in turns without tools: words are all there is."""
    talk = 2.0 if not any(episode.deeds for episode in story.episodes) else 0.5
    for episode in story.episodes:
        weight = story.recency(episode.start)
        if KEEP.search(episode.ask[:READ_CHARS]):
            yield Line(f"{REMEMBER}{said(episode.ask, scale.request)}", 9.0 * weight, episode.start)
        elif episode.ask and not episode.deeds and not (episode.answer and questions(episode.ask)):
            facts = len(story.facts[episode.start].facts)
            yield from _spoken(episode, (talk + 1.5 * min(facts, 3)) * weight, talk * weight, scale)


def _spoken(episode: Episode, asked: float, answered: float, scale: Scale) -> Iterator[Line]:
    if len(episode.ask) > 15 or not episode.ask.isascii():
        told = said(episode.ask, scale.request)
        yield Line(f"{USER}{told}", 1.5 * asked, episode.start, value=told)
    if len(episode.answer) > 60 or not episode.answer.isascii():
        yield Line(f"Assistant: {opening(episode.answer, scale.answer)}", answered, episode.start + 0.5)
