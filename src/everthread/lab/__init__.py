"""Tools to try things out: a simulated provider, replays of recorded conversations, importers of logs."""
