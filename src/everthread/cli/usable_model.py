"""Check that the model of a chat can be used, or else say what to do and offer a small local model."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from everthread.cli.output import print_text
from everthread.config import Config, config_path, home_directory
from everthread.config.file_edits import set_keys
from everthread.errors import InputError
from everthread.factory.model_setup import check_choice
from everthread.providers.local import SMOLLM2, download_model

LOCAL_MODEL = f"local/{SMOLLM2.name}"
MODEL_HELP = (
    "Run `everthread init` to set up a model: from a provider, on a server of your own, "
    "or a small one on this machine."
)


LOCAL_MODEL_OFFER = (
    "A small model can run on this machine: no key, good for trying things out, not for work."
)


def find_model_problem(config: Config, model: str | None) -> str:
    """Return why the model cannot be used and what to do about it; empty if it can be used."""
    choice, problem = check_choice(config.model, model)
    if not problem:
        return ""
    if choice is None:
        return f"{problem}\n{MODEL_HELP}"
    return (
        f"{choice.model} needs a key, and {problem}.\n"
        f"Set it with `export {choice.key_env}=…`, give --base-url http://… for a server of your own, "
        "or run `everthread init` to choose another model."
    )


def choose_model(config: Config, model: str | None, *, can_ask: bool) -> str | None:
    """Return the model to use. If no model can be used, print what to do and offer the small local model."""
    problem = find_model_problem(config, model)
    if not problem:
        return model
    if not can_ask or find_spec("xllamacpp") is None:
        raise InputError(problem)
    print_text(f"{problem}\n")
    is_downloaded = SMOLLM2.path(home_directory()).is_file()
    download = (
        "" if is_downloaded else f" About {SMOLLM2.size // 1_000_000} MB will be downloaded first."
    )
    print_text(f"{LOCAL_MODEL_OFFER}{download}")
    if not typer.confirm("Use the small model on this machine now?", default=False):
        raise typer.Exit(2)
    download_model(home_directory(), report=lambda words: print_text((words, "dim")))
    if config.model.default is None and set_keys(config_path(), {"model.default": LOCAL_MODEL}):
        print_text(
            (
                f"{LOCAL_MODEL} is used from now on (model.default); `everthread init` changes it.",
                "dim",
            )
        )
    return LOCAL_MODEL
