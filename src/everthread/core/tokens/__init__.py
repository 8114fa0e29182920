"""How many tokens a request is, and how many it may be."""

from everthread.core.tokens.counter import RunningTotal, TokenCounter, estimate_request_tokens

__all__ = ["RunningTotal", "TokenCounter", "estimate_request_tokens"]
