"""How many tokens a request is, and how many it may be."""

from everthread.core.tokens.counter import TokenCounter, estimate_request_tokens

__all__ = ["TokenCounter", "estimate_request_tokens"]
