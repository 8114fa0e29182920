"""Reach a model.

clients.py       three protocols through their own SDKs: OpenAI's chat and responses, Anthropic's messages
model_errors.py  failures as one `ModelError` with a sentence
resilience.py    wrappers around a model: retry, time limits, fallback, an output cap that fits
catalog.py       windows, output caps and cache rules, from a table or from the server
model_choice.py  from settings and environment to a model
local.py         a small model on this machine, and its file
"""
