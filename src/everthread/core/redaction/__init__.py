"""Credentials out of texts and values."""

from everthread.core.redaction.scanner import MARK, Secret, find_secrets, redact, redact_part, redact_value

__all__ = ["MARK", "Secret", "find_secrets", "redact", "redact_part", "redact_value"]
