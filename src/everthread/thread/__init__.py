"""One managed conversation: compaction policy, recovery, limits, accounting, events, recall."""
