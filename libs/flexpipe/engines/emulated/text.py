"""Text and ids of the emulated engine's own OpenAI endpoints; loaded at their first request.

``tokenizers`` and ``jinja2`` are imported late: an engine that is only asked for ids starts faster.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


class TextCodec:
    """The tokenizer and chat template of a model folder."""

    def __init__(self, model_path: Path) -> None:
        """Raises ValueError when the folder has no readable tokenizer."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
        from tokenizers import Tokenizer  # noqa: PLC0415

        try:
            self.tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
            settings = json.loads((model_path / "tokenizer_config.json").read_text("utf-8"))
        except Exception as error:  # noqa: BLE001  `tokenizers` raises bare Exception
            raise ValueError(f"{model_path} has no readable tokenizer: {error}") from None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(settings.get("chat_template") or "")
        self._eos = settings.get("eos_token")

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def chat_prompt(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The ids of a conversation, ready for the assistant's turn."""
        text = self._template.render(
            messages=messages, add_generation_prompt=True, eos_token=self._eos, bos_token=""
        )
        return self.encode(text)


class TextStream:
    """Ids in, text out: never half a character, never part of a stop string."""

    def __init__(self, codec: TextCodec, stops: Sequence[str]) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415

        self._tokenizer = codec.tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stops = [stop for stop in stops if stop]
        self._held = max((len(stop) for stop in self._stops), default=1) - 1
        self._pending = ""
        self.matched: str | None = None

    def push(self, tokens: Sequence[int]) -> str:
        """Text that is settled after these ids; after a stop string matched, no more comes."""
        if self.matched is not None:
            return ""
        for token in tokens:
            self._pending += self._stream.step(self._tokenizer, token) or ""
        found = [(self._pending.find(stop), stop) for stop in self._stops if stop in self._pending]
        if found:
            at, self.matched = min(found)
            settled, self._pending = self._pending[:at], ""
            return settled
        cut = max(len(self._pending) - self._held, 0)
        settled, self._pending = self._pending[:cut], self._pending[cut:]
        return settled

    def flush(self) -> str:
        """What was held back, once the sequence has ended."""
        settled, self._pending = self._pending, ""
        return settled
