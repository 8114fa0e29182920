"""A simulated provider of language models for offline use, with real HTTP and the four protocols.

    async with Provider(models={"gpt-5": 400_000}, script=["Hello.", Fault("rate_limit", retry_after=1)]) as provider:
        client = AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="any", max_retries=0)
        await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi"}])
        provider.log[-1].request          # the request that arrived, in core form
        provider.log[-1].shared           # how far the request extends the previous one (PrefixDiff)

`provider.url` is the root: Anthropic's client takes it unchanged, OpenAI's with `/v1` (`provider.base_url(api)`).

models   windows by name, or `ServedModel`s, which also set the dialect of the errors, the output cap and more
script   a list of answers, one for each request that is valid and fits the window. An answer is a text, a
         `ModelReply`, a `Fault`, or a function of the `ModelRequest` (also async) that returns one of these. Or one
         such function for all requests, such as `RecordedAnswers(messages)`. Without a script the provider echoes the
         last message. If a function raises (an assertion, say), the client gets a 500, and closing the provider raises
         the exception again
faults   a `FaultPlan` with random but reproducible faults
clock    returns the time in seconds, for the expiry of the caches

The provider runs in the caller's event loop; run a blocking client in a thread (`asyncio.to_thread`).
Prompts are counted with the model's own tokenizer, so windows, usage and caches are those a real provider would report.
"""

from __future__ import annotations

from everthread.lab.provider.answers import RequestRecord
from everthread.lab.provider.faults import Fault, FaultPlan
from everthread.lab.provider.http_app import Provider
from everthread.lab.provider.script import RecordedAnswers
from everthread.lab.provider.served_models import ServedModel

__all__ = ["Fault", "FaultPlan", "Provider", "RecordedAnswers", "RequestRecord", "ServedModel"]
