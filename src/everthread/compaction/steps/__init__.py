"""The steps of a compaction that the engines share: read, cut, write, check, assemble; one file a step."""
