"""The real small model, where its file can be had."""

from tests.providers.conftest import local_file

__all__ = ["local_file"]
