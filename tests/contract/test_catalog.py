"""The catalogue against the classes: names, completeness, listeners, permissions of consumers, schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from faststream.specification.asyncapi.v3_0_0.schema import ApplicationSchema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flexpipe.events as events_package
from flexpipe.bus import schemas
from flexpipe.events import catalog
from flexpipe.events.catalog import Said
from flexpipe.events.message import Command, Event, Message, type_name, words
from flexpipe.testing.examples import example_of

FOLDER = Path(__file__).parents[2] / "schemas"
NAMES = [said.message.__name__ for said in catalog.MESSAGES]
BEAT = "heartbeat"
PARTICIPLE = re.compile(r"^([a-z]+-)?([a-z]+ed|ready|lost|stuck|handed-over|rolled-back)$")
VERB = re.compile(r"^[a-z]+$")


def leaves(cls: type[Message]) -> set[type[Message]]:
    """Message classes of the events package that nobody derives from."""
    below = [sub for sub in cls.__subclasses__() if sub.__module__.startswith("flexpipe.")]
    if not below:
        return {cls}
    return set().union(*(leaves(sub) for sub in below))


def test_every_message_class_is_in_the_catalogue_exactly_once() -> None:
    assert sorted(cls.__name__ for cls in leaves(Message)) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)


def test_types_and_subjects_are_unique() -> None:
    types = [said.ce_type for said in catalog.MESSAGES]
    subjects = [said.subject("k") for said in catalog.MESSAGES]
    assert len(set(types)) == len(types)
    assert len(set(subjects)) == len(subjects)


@pytest.mark.parametrize("said", catalog.MESSAGES, ids=NAMES)
def test_a_class_name_gives_type_subject_and_schema_file(said: Said) -> None:
    noun, word = words(said.message)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", noun)
    rebuilt = (
        [word, *noun.split("-")] if issubclass(said.message, Command) else [noun, *word.split("-")]
    )
    assert "".join(part.capitalize() for part in rebuilt) == said.message.__name__
    assert said.ce_type == type_name(said.message) == f"flexpipe.{noun}.{word}"
    middle = word if said.lane == "urgent" else f"{noun}.{word}"
    assert said.subject("key") == f"flexpipe.{said.lane}.{middle}.key"
    assert catalog.of_subject(said.subject("key.of-it")) == (said, "key.of-it")
    assert schemas.schema_file(said) == f"{noun}.{word}.json"


@pytest.mark.parametrize("said", catalog.MESSAGES, ids=NAMES)
def test_an_event_is_a_participle_and_a_command_is_a_verb_on_its_lane(said: Said) -> None:
    _, word = words(said.message)
    if issubclass(said.message, Command):
        assert VERB.fullmatch(word)
        assert said.lane in ("cmd", "urgent")
    else:
        assert issubclass(said.message, Event)
        assert PARTICIPLE.fullmatch(word) or (word == BEAT and said.lane == "tel"), word
        assert said.lane in ("evt", "seq", "tel", "span")


@pytest.mark.parametrize("said", catalog.MESSAGES, ids=NAMES)
def test_somebody_says_it_and_somebody_hears_it(said: Said) -> None:
    assert said.says
    assert said.hears
    if said.lane == "cmd":
        assert len(said.hears) == 1, "a command has one kind of doer"


@pytest.mark.parametrize("said", catalog.MESSAGES, ids=NAMES)
def test_its_lane_lies_on_exactly_one_stream_or_may_be_lost(said: Said) -> None:
    assert sum(said.lane in stream.lanes for stream in catalog.STREAMS) == said.is_stored
    assert said.is_stored is (said.lane != "tel")


@pytest.mark.parametrize("subject", ["flexpipe", "flexpipe.evt.engine.ready", "flexpipe.urgent.x"])
def test_a_subject_where_nothing_is_said_is_nobodys(subject: str) -> None:
    assert catalog.of_subject(subject) is None


def test_every_bucket_has_a_writer_and_a_reader() -> None:
    for bucket in catalog.BUCKETS:
        assert bucket.writers
        assert bucket.readers


def test_committed_schemas_are_what_the_catalogue_gives() -> None:
    assert schemas.differences(FOLDER) == (), "run `make schemas` and commit the result"


def test_writing_schemas_removes_those_of_messages_that_are_no_more(tmp_path: Path) -> None:
    (tmp_path / "old.message.json").write_text("{}")
    assert "old.message.json" in schemas.differences(tmp_path)
    schemas.write(tmp_path)
    assert schemas.differences(tmp_path) == ()
    assert not (tmp_path / "old.message.json").exists()


@pytest.mark.parametrize("said", catalog.MESSAGES, ids=NAMES)
@settings(max_examples=5, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_a_schema_accepts_what_is_written_and_a_reader_lets_new_fields_pass(
    said: Said, data: st.DataObject
) -> None:
    message = data.draw(example_of(said.message))
    schema = json.loads((FOLDER / schemas.schema_file(said)).read_text())
    body = json.loads(message.canonical_json())
    jsonschema.validate(body, schema)
    assert catalog.parse(said.ce_type, message.canonical_json()) == message
    later = json.dumps({**body, "a_field_of_a_later_version": 1})
    assert catalog.parse(said.ce_type, later) == message


def test_the_asyncapi_document_has_the_shape_of_asyncapi_3() -> None:
    document = yaml.safe_load((FOLDER / schemas.ASYNCAPI_FILE).read_text())
    assert document["asyncapi"] == "3.0.0"
    ApplicationSchema.model_validate(document)
    for ref in references(document):
        if ref.startswith("#/"):
            target: Any = document
            for part in ref[2:].split("/"):
                target = target[part]
        else:
            assert (FOLDER / ref).is_file()
    assert len(document["channels"]) == len(catalog.MESSAGES)
    said = sum(len(row.says) + len(row.hears) for row in catalog.MESSAGES)
    assert len(document["operations"]) == said


def test_the_asyncapi_document_tells_what_comes_without_headers() -> None:
    document = yaml.safe_load((FOLDER / schemas.ASYNCAPI_FILE).read_text())
    bare = {
        name for name, each in document["components"]["messages"].items() if "headers" not in each
    }
    assert bare == {"node.heartbeat", "host.heartbeat"}
    assert "typed by hand" in document["channels"]["deployment.downshift"]["description"]
    assert "no stream" in document["channels"]["node.sampled"]["description"]


def references(value: Any) -> list[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for each in value.values() for ref in references(each)]
    if isinstance(value, list):
        return [ref for each in value for ref in references(each)]
    return []


def test_all_event_modules_are_loaded() -> None:
    folder = Path(events_package.__file__ or "").parent
    modules = {path.stem for path in folder.glob("*.py")} - {
        "__init__",
        "catalog",
        "message",
        "outgoing",
    }
    assert {said.message.__module__.rsplit(".", 1)[1] for said in catalog.MESSAGES} == modules
