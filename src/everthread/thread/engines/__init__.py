"""Run engines and wait for their summaries, off the event loop."""
