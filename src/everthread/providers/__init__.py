"""How a model is reached.

http.py                  what the three protocols share: sending, reading, failing
openai_chat.py           chat completions: OpenAI and everybody who speaks like it
openai_responses.py      OpenAI's responses
anthropic.py             Anthropic's messages
failures.py              what went wrong, as one `ModelError` with a sentence
retry.py  fallback.py  limits.py   wrappers: once more, another model, in time
wrapper.py  streams.py   what those share: one interface, events, streams that are closed
catalog.py               windows, output caps and cache rules that are known beforehand
endpoint.py  window.py   what a server says about its models; which window holds, and why
output_cap.py            how a request caps its answer
local.py  local_file.py  a small model on this machine, and its file
choose.py                from settings and environment to a model
"""
