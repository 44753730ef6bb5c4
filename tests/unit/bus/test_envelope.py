"""CloudEvents in binary mode: what goes into the headers, and what a reader makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexpipe.bus.envelope import headers_of, open_envelope, subject_of
from flexpipe.bus.hearing import Hearing, by_stream, filters_of, passing, stream_of
from flexpipe.events import catalog
from flexpipe.events.fleet import NodeHeartbeat, NodeSampled
from flexpipe.events.hatch import DownshiftDeployment
from flexpipe.events.plan import EngineReady, StartPlan
from flexpipe.events.route import LoadObserved
from flexpipe.events.shift import OrderShift
from flexpipe.kernel.errors import InvalidInput
from flexpipe.testing.tally import an_order

HATCH = "flexpipe.urgent.downshift.toy"


def test_an_envelope_says_who_what_when_and_why() -> None:
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    order = an_order("o-1", traceparent=trace)
    headers = headers_of(order, source="/flexpipe/operator/cli", at_s=0.5)
    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": order.message_id,
        "ce-type": "flexpipe.shift.order",
        "ce-source": "/flexpipe/operator/cli",
        "ce-time": "1970-01-01T00:00:00.500000+00:00",
        "content-type": "application/json",
        "Nats-Msg-Id": order.message_id,
        "traceparent": trace,
    }
    assert subject_of(order) == "flexpipe.cmd.shift.order.toy"


def test_an_envelope_opens_to_what_was_put_in() -> None:
    order = an_order("o-1", traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    headers = headers_of(order, source="/x", at_s=1)
    delivered = open_envelope(headers, order.message.encode(), fallback_id="f")
    assert (delivered.type, delivered.message) == ("OrderShift", order.message)
    assert (delivered.message_id, delivered.traceparent) == (order.message_id, order.traceparent)


def test_header_names_are_read_in_any_case_and_an_id_is_always_there() -> None:
    body = an_order("o-1").message.encode()
    delivered = open_envelope({"CE-Type": "flexpipe.shift.order"}, body, fallback_id="S:7")
    assert delivered.message_id == "S:7"


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b'{"deployment":"toy"}', b'{"surplus":1}'])
def test_what_is_typed_by_hand_needs_no_header_and_no_body(body: bytes) -> None:
    heard = open_envelope(None, body, fallback_id="S:7", subject=HATCH, stored_at_s=5.0)
    assert (heard.type, heard.message_id, heard.sent_at_s) == ("DownshiftDeployment", "S:7", 5.0)
    assert catalog.parse(heard.type, heard.message) == DownshiftDeployment(deployment="toy")


def test_what_is_typed_by_hand_says_who_and_why() -> None:
    body = b'{"by": "Ana", "reason": "smells wrong"}'
    heard = open_envelope({"Other": "header"}, body, fallback_id="S:7", subject=HATCH)
    said = catalog.parse(heard.type, heard.message)
    assert said == DownshiftDeployment(deployment="toy", by="Ana", reason="smells wrong")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"deployment":"other"}', "deployment: 'other' .*its subject says 'toy'"),
        (b"now!", "flexpipe.deployment.downshift: 'now!' .*a body is JSON"),
        (b"[1]", "a body is a JSON object"),
        (b'{"by":1}', "by: Input should be a valid string"),
        (b'{"by":NaN}', "a body is JSON"),
        (b'{"by":"\\ud800"}', "flexpipe.deployment.downshift"),
        (b"\xff", "a body is UTF-8 JSON"),
        (b"[" * 100_000, "flexpipe.deployment.downshift"),
    ],
)
def test_what_is_typed_wrongly_is_one_line_that_says_so(body: bytes, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault) as caught:
        open_envelope(None, body, fallback_id="f", subject=HATCH)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("subject", ["flexpipe.cmd.shift.order.toy", "flexpipe.urgent.no.toy", ""])
def test_elsewhere_a_message_carries_its_type(subject: str) -> None:
    with pytest.raises(InvalidInput, match="ce-type"):
        open_envelope(None, b"{}", fallback_id="f", subject=subject)


def test_a_beat_is_told_by_its_subject_but_a_sample_by_its_header() -> None:
    beat = NodeHeartbeat(node="a1", counter=3)
    subject = "flexpipe.tel.node.heartbeat.a1"
    heard = open_envelope(None, beat.canonical_json().encode(), fallback_id="f", subject=subject)
    assert catalog.parse(heard.type, heard.message) == beat
    with pytest.raises(InvalidInput, match="ce-type"):
        open_envelope(None, b"{}", fallback_id="f", subject="flexpipe.tel.node.sampled.a1")


@given(headers=st.dictionaries(st.text(max_size=20), st.text(max_size=40)), body=st.binary())
def test_whatever_comes_is_a_delivery_or_one_clear_line(
    headers: dict[str, str], body: bytes
) -> None:
    for fields in (headers, {**headers, "ce-type": "flexpipe.shift.order"}):
        with pytest.raises(InvalidInput) as caught:
            open_envelope(fields, body, fallback_id="f")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["", ">", "*", "a.*", "a b", "a..b", ".a", "a.", "a\n", "é"])
def test_a_key_that_would_reach_other_subjects_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        subject_of(an_order("o-1").model_copy(update={"key": key}))


def test_a_star_hears_every_key_and_consumers_are_one_a_stream() -> None:
    assert Hearing(EngineReady).subject == "flexpipe.evt.engine.ready.>"
    assert Hearing(StartPlan, "node-a").subject == "flexpipe.cmd.plan.start.node-a"
    hears = (Hearing(EngineReady), Hearing(OrderShift), Hearing(LoadObserved))
    tel = (Hearing(NodeSampled), Hearing(NodeHeartbeat, "a1"))
    assert passing(hears + tel) == tel
    assert list(by_stream(hears + tel)) == ["FLEXPIPE_CMD", "FLEXPIPE_EVT", "FLEXPIPE_SEQ"]
    assert filters_of(hears * 2) == tuple(sorted(hearing.subject for hearing in hears))
    with pytest.raises(InvalidInput, match="one stream at a time"):
        stream_of(hears)
