"""From a resumable request to prompt ids and a token budget, or to an exact 400.

Called by the router after `paths.classify` said resume.
"""

from datetime import datetime

from flexpipe.routing.openai.errors import context_length_exceeded, invalid
from flexpipe.routing.openai.requests import ChatRequest, CompletionRequest, Request
from flexpipe.routing.text.chat_template import ChatTemplateRefused
from flexpipe.routing.text.tokenizer import TextTokenizer


def prompt_ids(request: Request, text: TextTokenizer, *, now: datetime) -> tuple[int, ...]:
    """The ids the engine would have made of this request; at least one.

    `now` is for templates that print the date. Raises `RequestRefused` (400) if the template
    refuses the conversation, an id is not in the vocabulary, or nothing is left to read.
    """
    if isinstance(request, ChatRequest):
        param = "messages"
        try:
            messages = [message.model_dump(exclude_none=True) for message in request.messages]
            ids = text.encode_chat(messages, now=now)
        except ChatTemplateRefused as refusal:
            raise invalid(str(refusal), param=param, code="invalid_value") from refusal
    else:
        param = "prompt"
        ids = _completion_ids(request, text)
    if not ids:
        raise invalid(f"{param}: comes to no token: give some text", param=param, code="empty")
    return tuple(ids)


def check_length(
    prompt_tokens: int, max_tokens: int | None, context: int, *, param: str = "messages"
) -> int:
    """The tokens that may be generated: `max_tokens`, or what the context has left if None.

    All in tokens; `context` is the deployment's. Raises `RequestRefused` (400,
    `context_length_exceeded`) when the prompt leaves no room, or less than was asked for.
    """
    room = context - prompt_tokens
    if room < 1 or (max_tokens is not None and max_tokens > room):
        raise context_length_exceeded(prompt_tokens, max_tokens, context, param=param)
    return room if max_tokens is None else max_tokens


def _completion_ids(request: CompletionRequest, text: TextTokenizer) -> list[int]:
    prompt = request.prompt if isinstance(request.prompt, str) else _only(request.prompt)
    if isinstance(prompt, str):
        return text.encode(prompt)
    strange = [token for token in prompt if token >= text.vocab_size]
    if strange:
        raise invalid(
            f"prompt: token id {strange[0]} is not in the vocabulary, "
            f"ids are less than {text.vocab_size}",
            param="prompt",
            code="invalid_value",
        )
    return list(prompt)


def _only(
    prompt: tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...],
) -> str | tuple[int, ...]:
    """The one prompt of a request that `classify` let pass: text or ids."""
    first = prompt[0]
    if isinstance(first, int):
        return tuple(token for token in prompt if isinstance(token, int))
    return first
