"""Whether the model's server answers, and whether it takes the key."""

from __future__ import annotations

from collections.abc import Mapping

import httpx2

from everthread.cli.doctoring.finding import Finding
from everthread.providers.choose import Choice

SECONDS = 5.0


async def reach(choice: Choice, env: Mapping[str, str]) -> Finding:
    """Ask for the list of models, which costs nothing. Any answer shows that somebody is there."""
    key = env.get(choice.key_env or "", "").strip()
    base = choice.base_url.rstrip("/")
    url = f"{base}/v1/models" if choice.api == "anthropic" else f"{base}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if choice.api == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    try:
        async with httpx2.AsyncClient(timeout=SECONDS) as client:
            status = (await client.get(url, headers=headers)).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        why = f"{url}: {type(error).__name__}{f': {error}' if str(error) else ''}"
        return Finding("endpoint", "broken", why, "check model.base_url, the network and whether the server runs")
    if status in (401, 403):
        advice = f"check the key in {choice.key_env}" if choice.key_env else "name its variable in model.api_key_env"
        return Finding("endpoint", "broken", f"{url}: answers, and refuses the key ({status})", advice)
    if status >= 500:
        return Finding("endpoint", "broken", f"{url}: answers with an error ({status})", "try again later")
    return Finding("endpoint", "good", f"{url}: answers ({status})")
