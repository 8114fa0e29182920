"""How a model is reached.

clients.py     the three protocols through their own SDKs: OpenAI's chat and responses, Anthropic's messages
errors.py      what went wrong, as one `ModelError` with a sentence
resilience.py  events, and wrappers: once more, another model, in time, a cap that fits
catalog.py     windows, output caps and cache rules: known beforehand, or said by a server
resolve.py     from settings and environment to a model
local.py       a small model on this machine, and its file
"""
