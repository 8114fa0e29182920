"""Chats of other services as threads: a signed webhook, Telegram, and what the next one needs."""
