"""What the nodes of one compaction took, together."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.lossless.writing import Words
from everthread.core.summary import Verification


def writers(words: Sequence[Words]) -> str:
    """Who wrote, each once, models first."""
    return ", ".join(sorted({each.author for each in words}, key=lambda author: (author == "extractive", author)))


def figures(words: Sequence[Words]) -> Verification:
    """The checks of all nodes, added up."""
    checks = [each.verification for each in words]
    return Verification(
        facts=sum(check.facts for check in checks), present=sum(check.present for check in checks),
        added=sum(check.added for check in checks), checked=sum(check.checked for check in checks),
        unverified=sum(check.unverified for check in checks),
    )  # fmt: skip
