"""Run CompactBench in its own environment: it answers each JSON line with one, until the input ends.

{"suite": FOLDER, "slots": N} -> {"version", "cases": [{"template", "difficulty", "turns", "rules", "decisions",
"checks"}, …], "distractors": {"user", "assistant"}, "prompts"}: every template at every difficulty, N times, with the
texts that the package's own driver inserts between two compactions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from compactbench.dsl import DifficultyLevel, load_suite, validate_template  # type: ignore[import-not-found] # its own environment
from compactbench.engine import derive_case_seed, distractors, generate_case  # type: ignore[import-not-found] # its own environment
from compactbench.runner import continuation  # type: ignore[import-not-found] # its own environment

import compactbench  # type: ignore[import-not-found] # its own environment


def main() -> None:
    for line in sys.stdin:
        peer_request = json.loads(line)
        answer = {
            "version": compactbench.__version__,
            "cases": list(cases(peer_request["suite"], peer_request["slots"])),
            "distractors": {
                "user": distractors._USER_DISTRACTORS,
                "assistant": distractors._ASSISTANT_DISTRACTORS,
            },
            "prompts": continuation._CONTINUATION_PROMPTS,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def cases(folder: str, slots: int) -> Any:
    for template in load_suite(folder):
        validate_template(template)
        for slot in range(slots):
            seed = derive_case_seed(f"{template.key}@{template.version}", "default", slot)
            for difficulty in template.difficulty_policy.distractor_turns or list(DifficultyLevel):
                made = generate_case(template, seed, difficulty)
                yield {
                    "template": template.key,
                    "difficulty": difficulty.value,
                    "turns": [
                        {"role": turn.role.value, "content": turn.content}
                        for turn in made.transcript.turns
                    ],
                    "rules": made.ground_truth.forbidden_behaviors,
                    "decisions": made.ground_truth.locked_decisions,
                    "checks": [
                        {"key": item.key, "type": item.item_type.value, **item.expected}
                        for item in made.evaluation_items
                    ],
                }


if __name__ == "__main__":
    main()
