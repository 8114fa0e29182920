"""Load the templates and static files of the pages."""

from __future__ import annotations

import hashlib
import mimetypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment

from everthread._version import __version__
from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun
from everthread.gateway.dashboard import page_text
from everthread.gateway.dashboard.charts import (
    Segment,
    draw_bar,
    make_environment,
)
from everthread.gateway.dashboard.message_page import VISIBILITY_LABELS
from everthread.gateway.dashboard.summary_lines import split_markup


@dataclass(frozen=True, slots=True)
class StaticFile:
    data: bytes
    media_type: str
    version: str


def load_static_files() -> dict[str, StaticFile]:
    static_files = {}
    for file in (files(__package__ or "everthread.gateway.dashboard") / "static").iterdir():
        data = file.read_bytes()
        media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        static_files[file.name] = StaticFile(
            data, media_type, hashlib.sha256(data).hexdigest()[:12]
        )
    return static_files


def make_page_environment(static_files: Mapping[str, StaticFile]) -> Environment:
    environment = make_environment()
    environment.globals |= {
        "version": __version__,
        "visibility_labels": VISIBILITY_LABELS,
        "static": lambda name: f"/dashboard/static/{static_files[name].version}/{name}",
        "bar": lambda segments, total, description, mark=None: draw_bar(
            [Segment(*segment) for segment in segments],
            total,
            description,
            mark_at=mark,
        ),
    }
    environment.filters |= {
        "comma": "{:,}".format,
        "count_noun": count_noun,
        "short": page_text.format_short,
        "dollars": format_dollars,
        "money": page_text.format_money,
        "pieces": split_markup,
        "part": page_text.format_share,
        "moment": page_text.format_time,
        "iso": lambda seconds: page_text.format_time(seconds, "%Y-%m-%dT%H:%M:%S+00:00"),
        "ago": lambda then: page_text.format_age(then, time.time()),
        "span": page_text.format_duration,
        "line": page_text.one_line_excerpt,
        "clean": page_text.clean,
    }
    return environment
