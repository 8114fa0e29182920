"""For trying things out: a provider that can be told what to do."""
