"""A node as `lcm_describe` tells of it."""

from __future__ import annotations

from everthread.core.found import moment
from everthread.core.nodes import Node

SOURCES = 24
"""So many ids are listed."""


def node_text(node: Node) -> str:
    """What a node covers, what it is made of, who wrote it, and its words."""
    kind = "messages" if node.level == 0 else "nodes"
    shown = ", ".join(node.sources[:SOURCES]) or "not known"
    more = f" and {len(node.sources) - SOURCES:,} more" if len(node.sources) > SOURCES else ""
    times = f", {moment(node.since)} to {moment(node.until)}" if node.until else ""
    makeshift = " (makeshift: to be written again when a model is there)" if node.degraded else ""
    return (
        f"turns {node.first_turn}-{node.last_turn}{times}\n"
        f"level {node.level}, over {len(node.sources):,} {kind}: {shown}{more}\n"
        f"{node.covered_tokens:,} tokens of messages in {node.tokens:,}, written by {node.author}{makeshift}\n\n"
        f"{node.body}"
    )
