"""Count the tokens of a request, and compute its limits."""

from everthread.core.tokens.counter import TokenCounter, estimate_request_tokens

__all__ = ["TokenCounter", "estimate_request_tokens"]
