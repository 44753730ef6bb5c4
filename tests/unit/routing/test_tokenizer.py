from datetime import UTC, datetime
from pathlib import Path

import pytest

from flexpipe.routing.text.chat_template import (
    ChatTemplate,
    ChatTemplateRefused,
    ContentFormat,
    Message,
)
from flexpipe.routing.text.tokenizer import ModelFolderError, TextTokenizer
from unit.routing.tiny_model import CHAT_TEMPLATE, write_json, write_model_folder

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CHAT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🙂"})


def load(folder: Path, **tokenizer_config: object) -> TextTokenizer:
    return TextTokenizer.load(write_model_folder(folder, **tokenizer_config))


def rendered(source: str, *messages: Message) -> str:
    return ChatTemplate.compile(source, {"bos_token": "<s>"}).render(messages, now=NOW)


def test_a_conversation_is_rendered_and_encoded_up_to_the_generation_prompt(tmp_path: Path) -> None:
    text = load(tmp_path)
    ids = text.encode_chat(CHAT, now=NOW)
    assert text.vocabulary.tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nGrüße 🙂<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ids[0] == text.bos_id == 1


def test_every_end_of_sequence_id_counts_wherever_it_is_declared(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, eos_token="<|im_start|>")
    write_json(folder / "config.json", {"eos_token_id": 5})
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    assert TextTokenizer.load(folder).eos_ids == {0, 1, 2, 5}


def test_the_models_own_sampling_defaults_and_context_are_read(tmp_path: Path) -> None:
    text = load(tmp_path)
    assert text.context_tokens == 512
    assert text.sampling_defaults.temperature == 0.5
    assert text.sampling_defaults.top_p == 1.0


def test_a_bos_flag_puts_one_bos_before_a_plain_prompt_and_none_before_a_chat(
    tmp_path: Path,
) -> None:
    text = load(tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=True)
    assert text.encode("fox")[0] == text.bos_id
    assert text.encode_chat(CHAT, now=NOW).count(1) == len(CHAT) + 1


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False},
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True},
    ],
)
def test_no_bos_where_the_flag_is_off_or_the_class_knows_no_flag(
    tmp_path: Path, config: dict[str, object]
) -> None:
    text = load(tmp_path, **config)
    assert text.bos_id not in text.encode("fox")


def test_a_template_file_goes_before_the_one_in_the_config(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    text = TextTokenizer.load(folder)
    assert text.decode(text.encode_chat(CHAT, now=NOW)) == "Be brief."


def test_the_default_of_several_templates_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]
    assert load(tmp_path / "a", chat_template=named).encode_chat(CHAT, now=NOW) == load(
        tmp_path / "b"
    ).encode_chat(CHAT, now=NOW)


def test_a_template_may_print_the_date_it_is_given() -> None:
    assert rendered("{{ strftime_now('%d %b %Y') }}", CHAT[0]) == "01 Mar 2026"


def test_a_template_writes_json_without_html_escapes() -> None:
    assert rendered("{{ messages[0] | tojson }}", {"role": "user", "content": "<é&>"}) == (
        '{"role": "user", "content": "<é&>"}'
    )


def test_a_generation_tag_renders_its_body() -> None:
    assert rendered("{% generation %}{{ bos_token }}{% endgeneration %}", CHAT[0]) == "<s>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ messages[0] + 1 }}", "unsupported operand"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_says_why_in_one_line(template: str, reason: str) -> None:
    with pytest.raises(ChatTemplateRefused, match=reason) as refusal:
        rendered(template, CHAT[1])
    assert "\n" not in str(refusal.value)


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_text_parts_are_joined_for_a_template_that_wants_a_string() -> None:
    assert rendered("{{ messages[0].content }}", {"role": "user", "content": PARTS}) == "a b"


def test_text_parts_stay_parts_for_a_template_that_loops_over_them() -> None:
    source = (
        "{% for message in messages %}{% for part in message['content'] %}"
        "[{{ part.text }}]{% endfor %}{% endfor %}"
    )
    assert ChatTemplate.compile(source, {}).content is ContentFormat.PARTS
    assert rendered(source, {"role": "user", "content": PARTS}) == "[a][b]"


def test_absent_content_is_the_empty_string() -> None:
    assert rendered("[{{ messages[0].content }}]", {"role": "system", "content": None}) == "[]"


def test_a_final_assistant_message_is_put_as_a_users() -> None:
    source = "{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}"
    messages = ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"})
    assert rendered(source, *messages) == "assistant:x;user:y;"


def test_a_model_without_a_template_refuses_chats_only(tmp_path: Path) -> None:
    text = load(tmp_path, chat_template=None)
    assert text.decode(text.encode("fox")) == "fox"
    with pytest.raises(ChatTemplateRefused, match="use /v1/completions"):
        text.encode_chat(CHAT, now=NOW)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing: put"),
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer file"),
        ("config.json", "{", "config.json is not JSON"),
        ("generation_config.json", "[]", "generation_config.json holds no JSON object"),
        ("chat_template.jinja", "{% if %}", "chat_template.jinja: the chat template does not com"),
    ],
)
def test_a_broken_model_folder_is_one_line_with_the_file_and_the_fix(
    tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    write_model_folder(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ModelFolderError, match=message) as error:
        TextTokenizer.load(tmp_path)
    assert str(tmp_path / file) in str(error.value)
    assert "\n" not in str(error.value)


def test_truncation_baked_into_a_tokenizer_file_cuts_no_prompt(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    text = TextTokenizer.load(folder)
    tokenizer = text.vocabulary.tokenizer
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert TextTokenizer.load(folder).decode(text.encode("the lazy dog")) == "the lazy dog"
    assert len(TextTokenizer.load(folder).encode("the quick brown fox jumps")) > 4
