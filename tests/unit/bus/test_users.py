"""Permissions as data: who may say and write what follows from the catalogue alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flexpipe.bus.server import server_config
from flexpipe.bus.users import SERVICES, Instance, durable_filters, permissions
from flexpipe.events import catalog
from flexpipe.events.catalog import Service


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_says_exactly_what_the_catalogue_lets_it_say(service: Service) -> None:
    granted = permissions(service).publish
    for said in catalog.MESSAGES:
        assert (said.subject(">") in granted) is (service in said.says), said.ce_type


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_writes_exactly_the_buckets_that_the_catalogue_lets_it_write(
    service: Service,
) -> None:
    granted = permissions(service).publish
    for bucket in catalog.BUCKETS:
        writes = any(subject.startswith(f"$KV.{bucket.name}.") for subject in granted)
        assert writes is (service in bucket.writers), bucket.name
        reads = f"$JS.API.STREAM.MSG.GET.KV_{bucket.name}" in granted
        assert reads is (service in bucket.writers + bucket.readers), bucket.name


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_listens_to_its_own_answers_and_to_what_no_stream_keeps_for_it(
    service: Service,
) -> None:
    passing = {said for said in catalog.MESSAGES if service in said.hears and not said.is_stored}
    assert set(permissions(service).subscribe) == {
        f"_INBOX_{service}.>",
        *(said.subject(">") for said in passing),
    }
    one = permissions(Instance(service=service, name="one"))
    assert set(one.subscribe) == {
        f"_INBOX_{service}-one.>",
        *(said.subject("one") for said in passing),
    }


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_manages_streams_and_nobody_says_everything(service: Service) -> None:
    for subject in permissions(service).publish:
        assert subject not in {">", "$JS.>", "$JS.API.>", "flexpipe.>", "$KV.>"}
        assert not any(
            f".STREAM.{verb}." in subject for verb in ("CREATE", "UPDATE", "DELETE", "PURGE")
        )


def test_one_instance_has_its_own_commands_keys_and_nothing_of_another() -> None:
    worker = Instance(service="worker", name="node-a")
    node = permissions(worker).publish
    assert "$KV.hosts.node-a" in node
    assert "$KV.snapshots.worker.node-a" in node
    assert "$JS.API.CONSUMER.MSG.NEXT.FLEXPIPE_CMD.worker-node-a" in node
    assert not any(
        "CREATE.FLEXPIPE_CMD" in subject or subject.endswith("FLEXPIPE_CMD.*") for subject in node
    )
    assert [subject for subject in node if ".tel." in subject] == [
        "flexpipe.tel.host.heartbeat.node-a"
    ]
    filters = durable_filters(worker)
    assert filters
    assert all(subject.endswith(".node-a") for subject in filters)


def test_an_instance_that_stands_for_several_nodes_speaks_and_hears_for_those_alone() -> None:
    agent = Instance(service="agent", name="fleet", keys=("b1", "a1"))
    granted = permissions(agent)
    assert [subject for subject in granted.publish if subject.startswith("flexpipe.tel.")] == [
        "flexpipe.tel.node.heartbeat.a1",
        "flexpipe.tel.node.heartbeat.b1",
        "flexpipe.tel.node.sampled.a1",
        "flexpipe.tel.node.sampled.b1",
    ]
    assert granted.subscribe == (
        "_INBOX_agent-fleet.>",
        "flexpipe.tel.sample.asked.a1",
        "flexpipe.tel.sample.asked.b1",
    )
    assert durable_filters(agent) == ("flexpipe.cmd.node.alter.a1", "flexpipe.cmd.node.alter.b1")
    assert "$JS.API.CONSUMER.MSG.NEXT.FLEXPIPE_CMD.agent-fleet" in granted.publish
    assert "$KV.snapshots.agent.fleet" in granted.publish


def test_the_estimator_orders_shifts_and_only_the_operator_pulls_the_hatch() -> None:
    assert "flexpipe.cmd.shift.order.>" in permissions("estimator").publish
    pulls = [
        each for each in SERVICES if "flexpipe.urgent.downshift.>" in permissions(each).publish
    ]
    assert pulls == ["operator"]


def test_the_configuration_is_json_with_every_user_restricted_but_admin(tmp_path: Path) -> None:
    users = dict.fromkeys(("admin", *SERVICES), "secret")
    config = json.loads(json.dumps(server_config(tmp_path, 4222, 8222, users)))
    told = {
        user["user"]: user["permissions"]["publish"] for user in config["authorization"]["users"]
    }
    assert set(told) == set(users)
    assert [user for user, subjects in told.items() if ">" in subjects] == ["admin"]
    assert config["listen"].startswith("127.0.0.1:")
