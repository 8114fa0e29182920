"""A simulated provider of language models for offline use: real HTTP, the three protocols, everything else simulated.

    async with Provider(models={"gpt-5": 400_000}, script=["Hello.", Fault("rate_limit", retry_after=1)]) as provider:
        client = AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="any", max_retries=0)
        await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi"}])
        provider.log[-1].request          # the request that arrived, in core form
        provider.log[-1].shared           # how far it extends the previous request (PrefixDiff)

`provider.url` is the root: Anthropic's client takes it unchanged, OpenAI's with `/v1` (`provider.base_url(api)`).

models   windows by name, or `ServedModel`s (dialect of the errors, output cap, cache minimum, …)
script   a list of answers, used one by one by requests that are right and fit: a text, a core `Reply`, a `Fault`, or a
         function of the `Request` (also async) that returns one of them; or one such function for every request, such
         as `Recorded(messages)`; None echoes. An exception in a function (an assertion, say) is a 500 to the
         client, and is raised again when the provider is closed
faults   a `FaultPlan`: faults at random, by a seed
clock    returns the time in seconds, for the expiry of the caches

It runs in the caller's event loop; run a blocking client in a thread (`asyncio.to_thread`).
Prompts are counted with the model's own tokenizer, so windows, usage and caches are those a real provider would report.
"""

from __future__ import annotations

from everthread.lab.provider.answers import Record
from everthread.lab.provider.faults import Fault, FaultPlan
from everthread.lab.provider.http_app import Provider
from everthread.lab.provider.script import RecordedAnswers
from everthread.lab.provider.served_models import ServedModel

__all__ = ["Fault", "FaultPlan", "Provider", "Record", "RecordedAnswers", "ServedModel"]
