"""Vectors of texts on this machine: the mean of static word vectors, out of a package that brings them along.

Words that say nothing in the language of the text are left out: a mean is drawn to what stands everywhere.

Only the files of `wordllama` are used. Nothing of it is run, so that nothing is fetched from anywhere.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everthread.core.inflection import stop_words
from everthread.core.terms import phrase_terms
from everthread.core.vectors import MOST_CHARS, packed
from everthread.errors import ModelError

NAME = "local"
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_WORDS = "tokenizers/l2_supercat_tokenizer_config.json"
_TENSOR = "embedding.weight"


class LocalEmbedder:
    """Static word vectors of 256 numbers. Reading the files takes half a second, once, in a thread of its own."""

    name = "wordllama/l2_supercat_256"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        return await asyncio.to_thread(lambda: [_embedded(text) for text in texts])

    async def close(self) -> None:
        """Nothing is open."""


def _embedded(text: str) -> bytes:
    words, weights = _files()
    said = phrase_terms(text[:MOST_CHARS])
    empty = stop_words(said)
    telling = " ".join(word for word in said if word not in empty) or " ".join(said)
    ids = words.encode(telling, add_special_tokens=False).ids or [0]
    return packed(weights[ids].mean(axis=0).tolist())


@functools.cache
def _files() -> tuple[Any, Any]:
    """The tokenizer and the vectors of its tokens."""
    try:
        import numpy as np  # noqa: PLC0415 - comes with an extra
        from safetensors.numpy import load_file  # noqa: PLC0415 - the same
        from tokenizers import Tokenizer  # noqa: PLC0415 - the same
    except ImportError as error:
        raise ModelError(f"{error}; install everthread[vectors], or name an embeddings endpoint") from error
    spec = importlib.util.find_spec("wordllama")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if folder is None or not (folder / _WEIGHTS).is_file():
        raise ModelError("the word vectors are not installed: install everthread[vectors]")
    weights = load_file(folder / _WEIGHTS)[_TENSOR].astype(np.float32)
    return Tokenizer.from_file(str(folder / _WORDS)), weights
