"""Renders a model's chat template to the very text the engine would have rendered.

Called by `tokenizer`. The rules are those of transformers' `apply_chat_template` (jinja settings,
filters, the `generation` tag) and, for what comes before it, those of SGLang's chat endpoint
(empty content, content parts, a final assistant message), because a conversation must give the
same ids on the resume path and on the relay path. Reads no clock: the caller says what day it is.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flexpipe.kernel.errors import FlexPipeError

Message = Mapping[str, object]

_MEDIA_WORDS = ("image", "audio", "video", "vision")
_MESSAGE_NAMES = ("message", "msg", "m")


class ChatTemplateRefused(FlexPipeError):
    """The template will not render this conversation (the client's mistake; one line)."""


class ContentFormat(StrEnum):
    """What a template expects in `message.content`: plain text, or a list of typed parts."""

    STRING = "string"
    PARTS = "parts"


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant said; it renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the filter's public signature
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Jinja's own `tojson` escapes HTML, which would change the prompt."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template with the special tokens it may name.

    `compile` raises `jinja2.TemplateSyntaxError` when the source is not a template.
    """

    compiled: jinja2.Template
    special_tokens: Mapping[str, str]
    content: ContentFormat

    @classmethod
    def compile(cls, source: str, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        environment = _environment()
        return cls(
            compiled=environment.from_string(source),
            special_tokens=dict(special_tokens),
            content=content_format(source, environment),
        )

    def render(self, messages: Sequence[Message], *, now: datetime) -> str:
        """The prompt's text, generation prompt included.

        `now` is what `strftime_now` in a template formats. Raises `ChatTemplateRefused` when the
        template calls `raise_exception` or cannot work with what the messages hold.
        """
        try:
            return self.compiled.render(
                messages=prepared(messages, self.content),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                strftime_now=now.strftime,
                **self.special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as refusal:
            reason = " ".join(str(refusal).split())
            raise ChatTemplateRefused(
                f"messages: the model's chat template refuses this conversation: {reason}"
            ) from refusal


def content_format(source: str, environment: jinja2.Environment) -> ContentFormat:
    """Parts if the template is multimodal or loops over a message's content (SGLang's rule)."""
    if any(word in source for word in _MEDIA_WORDS):
        return ContentFormat.PARTS
    loops = environment.parse(source).find_all(nodes.For)
    parts = any(_is_content_of_message(loop.iter) for loop in loops)
    return ContentFormat.PARTS if parts else ContentFormat.STRING


def _is_content_of_message(node: nodes.Node) -> bool:
    match node:
        case nodes.Filter(node=inner) | nodes.Test(node=inner) if inner is not None:
            return _is_content_of_message(inner)
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _is_content_of_message(inner)
        case nodes.Getitem(node=nodes.Name(name=name), arg=nodes.Const(value="content")):
            return name in _MESSAGE_NAMES
        case nodes.Getattr(node=nodes.Name(name=name), attr="content"):
            return name in _MESSAGE_NAMES
        case _:
            return False


def prepared(messages: Sequence[Message], content: ContentFormat) -> list[dict[str, object]]:
    """The messages as the engine's chat endpoint hands them to the template.

    Nothing is None: absent content is the empty string, absent keys are left out. Text parts are
    joined with a space where the template wants a string. A final assistant message is put as a
    user's, since the generation prompt opens the assistant's next turn.
    """
    ready = [_prepared_message(message, content) for message in messages]
    if ready and ready[-1].get("role") == "assistant" and isinstance(ready[-1]["content"], str):
        ready[-1] = {"role": "user", "content": ready[-1]["content"]}
    return ready


def _prepared_message(message: Message, content: ContentFormat) -> dict[str, object]:
    kept = {key: value for key, value in message.items() if value is not None}
    body = kept.get("content", "")
    if isinstance(body, list | tuple):
        texts = [str(part["text"]) for part in body if part.get("type") == "text"]
        if content is ContentFormat.STRING:
            body = " ".join(texts)
        else:
            body = [{"type": "text", "text": text} for text in texts]
    return {**kept, "content": body}
