"""What clients send: bodies and queries, with unknown fields refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator

from everthread.gateway.native.options import WAIT_SECONDS

Title = Annotated[str, StringConstraints(max_length=200)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Offset = Annotated[int, Field(ge=0, le=10**9)]


def _address(url: str) -> str:
    if not url.startswith(("data:", "https://", "http://")):
        raise ValueError("an image is a data: or http(s): address")
    return url


class Body(BaseModel):
    """A JSON object, taken as it is written: a number is no text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """What follows the question mark."""

    model_config = ConfigDict(extra="forbid")


class NoBody(Body):
    """Nothing, or `{}`."""


class NoQuery(Query):
    """Nothing."""


class CreateThread(Body):
    """A new thread."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "Invoices", "metadata": {"customer": "4711"}}, {}]}
    )
    title: Title = ""
    model: Name | None = Field(None, description="Null: the gateway's own choice.")
    metadata: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ] = Field(default_factory=dict, max_length=16, description="Notes of yours; given back as they are.")


class TextPart(Body):
    type: Literal["text"]
    text: Annotated[str, StringConstraints(min_length=1)]


class ImageAddress(Body):
    url: Annotated[str, AfterValidator(_address)]
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageAddress


class SendMessage(Body):
    """A message of the user. A text like `/compress` is a command, and not sent to the model."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"content": "Which invoices are open?"}]})
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]

    @field_validator("content")
    @classmethod
    def _says_something(cls, value: object) -> object:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("the message is empty")
        return value


class Cancel(Body):
    """What to stop: one turn, else the one that runs."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"queued": True}]})
    turn: Name | None = None
    queued: bool = Field(default=False, description="Also the messages that wait.")


class Compress(Body):
    """Compact the history now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"focus": "open invoices"}, {"preview": True}]})
    focus: Annotated[str, StringConstraints(max_length=500)] | None = Field(
        None, description="What must survive above all."
    )
    preview: bool = Field(default=False, description="Only tell what would go.")

    @field_validator("focus")
    @classmethod
    def _no_option(cls, value: str | None) -> str | None:
        if value is not None and "--preview" in value.split():
            raise ValueError("say `preview: true` instead of --preview")
        return value


class Branch(Body):
    """A thread of its own that begins with a part of this one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"title": "Another way"}, {"at_message": 42}]})
    at_message: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        None, description="The last message both share. Null: the newest."
    )
    title: Title = ""


class Page(Query):
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    offset: Offset = 0


class HistoryQuery(Page):
    view: Literal["whole", "current"] = Field(
        "whole", description="Everything that was said, or what the model sees now: after compactions, their summary."
    )


class Find(Page):
    q: Annotated[str, StringConstraints(min_length=1, max_length=500)] = Field(
        description='Words, "phrases", prefix*; identifiers as typed.'
    )
    role: Literal["user", "assistant", "tool"] | None = None
    tool: Name | None = None


class Days(Query):
    days: Annotated[int, Field(ge=1, le=3_660)] = Field(30, description="So many days, today (UTC) included.")


class Wait(Query):
    wait: Annotated[float, Field(ge=0, le=WAIT_SECONDS, allow_inf_nan=False)] = Field(
        WAIT_SECONDS, description="Seconds to wait for the end; then the turn is given as it is, with 202."
    )
