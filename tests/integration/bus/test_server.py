"""The embedded server: what it leaves on disk, what it refuses, what it declares."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flexpipe.bus import connect
from flexpipe.bus import server as server_module
from flexpipe.bus.link import Link
from flexpipe.bus.server import embedded_server, settings_from
from flexpipe.bus.streams import declare, wanted
from flexpipe.kernel.errors import InvalidInput, Unavailable
from flexpipe.kernel.machine import Put
from flexpipe.telemetry.health import serving

pytestmark = pytest.mark.processes


async def test_secrets_on_disk_are_for_the_owner_alone(tmp_path: Path) -> None:
    async with embedded_server(tmp_path / "bus"):
        for name in ("bus.json", "nats.conf"):
            mode = stat.S_IMODE((tmp_path / "bus" / name).stat().st_mode)
            assert mode == 0o600, name


async def test_a_store_and_its_passwords_outlive_the_server(tmp_path: Path) -> None:
    put = Put(write_id="w", bucket="routes", key="toy", value="{}", expected=0)
    async with (
        embedded_server(tmp_path) as server,
        connect(server.settings("executor"), service="executor", name="main") as bus,
    ):
        before = server.settings("executor").password
        await bus.put(put)
    async with embedded_server(tmp_path) as server:
        told = settings_from(tmp_path, "executor")
        assert told.password == before
        async with connect(told, service="executor", name="main") as bus:
            assert (await bus.read("routes", "toy")).value == "{}"


async def test_an_occupied_port_is_one_line_that_names_it_and_the_fix(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port: {port} .*in use.*give another") as caught:
            async with embedded_server(tmp_path, port=port):
                pass
    assert "\n" not in str(caught.value)


async def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    async with embedded_server(tmp_path):
        with pytest.raises(InvalidInput, match="another server runs on it"):
            async with embedded_server(tmp_path):
                pass


async def test_a_server_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("not a directory")
    with pytest.raises(Unavailable, match="NATS did not start"):
        async with embedded_server(tmp_path):
            pass


async def test_the_process_is_gone_afterwards_even_if_it_was_frozen(tmp_path: Path) -> None:
    import signal  # noqa: PLC0415

    async with embedded_server(tmp_path) as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not psutil.pid_exists(pid)


async def test_declaring_again_changes_nothing_and_never_removes(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        admin = server.settings("admin")
        link = Link(admin, "test")
        await link.open()
        own = {"name": "SOMEBODYS", "subjects": ["somebody.>"], "storage": "file"}
        await link.api("STREAM.CREATE.SOMEBODYS", own)
        before = await link.api("STREAM.LIST")
        await declare(admin)
        after = await link.api("STREAM.LIST")
        await link.close()
    configs = [[each["config"] for each in listing["streams"]] for listing in (before, after)]
    assert configs[0] == configs[1]
    assert len(configs[0]) == len(wanted(1)) + 1


async def test_a_stream_that_differs_is_brought_back(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        admin = server.settings("admin")
        link = Link(admin, "test")
        await link.open()
        config = (await link.api("STREAM.INFO.FLEXPIPE_SEQ"))["config"]
        await link.api("STREAM.UPDATE.FLEXPIPE_SEQ", {**config, "max_bytes": 1 << 20})
        await declare(admin)
        now = (await link.api("STREAM.INFO.FLEXPIPE_SEQ"))["config"]
        await link.close()
    assert now == config


async def test_deciding_buckets_are_read_from_the_leader_and_batches_are_allowed_where_asked(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server:
        link = Link(server.settings("admin"), "test")
        await link.open()
        configs = {
            each["config"]["name"]: each["config"]
            for each in (await link.api("STREAM.LIST"))["streams"]
        }
        await link.close()
    assert not any(config.get("allow_direct") for config in configs.values())
    assert configs["KV_reservations"]["allow_atomic"]
    assert not configs["KV_routes"].get("allow_atomic")
    assert configs["FLEXPIPE_CMD"]["retention"] == "workqueue"


async def test_settings_of_nobody_name_who_there_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="run `flexpipe up` there first"):
        settings_from(tmp_path, "executor")
    async with embedded_server(tmp_path):
        with pytest.raises(InvalidInput, match="one of admin, agent"):
            settings_from(tmp_path, "somebody")


@pytest.mark.parametrize("field", ["port", "monitor_port"])
async def test_a_port_that_another_program_took_meanwhile_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    async def healthy(request: Request) -> Response:
        return JSONResponse({"server_name": "another"})  # as another NATS would

    pages = Starlette(routes=[Route("/healthz", healthy), Route("/varz", healthy)])
    choose, chosen = server_module._port, list[str]()
    taken = choose(field, None)

    def grabbed(which: str, wanted: int | None) -> int:
        chosen.append(which)
        return taken if which == field and chosen.count(field) == 1 else choose(which, wanted)

    monkeypatch.setattr(server_module, "_port", grabbed)
    async with serving(pages, "127.0.0.1", taken), embedded_server(tmp_path) as server:
        assert str(taken) not in server.url + server.monitor_url
        async with connect(server.settings("executor"), service="executor", name="main") as bus:
            assert await bus.echo() < 1
    assert chosen.count(field) == 2


async def test_a_port_that_was_asked_for_is_not_exchanged_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = (taken.getsockname()[1], server_module._port("monitor_port", None))
        monkeypatch.setattr(server_module, "_port", lambda _, wanted: wanted)
        with pytest.raises(Unavailable, match="address already in use"):
            async with embedded_server(tmp_path, port=ports[0], monitor_port=ports[1]):
                pass


async def test_servers_started_at_once_find_ports_of_their_own(tmp_path: Path) -> None:
    async def one(index: int) -> str:
        async with embedded_server(tmp_path / str(index)) as server:
            return server.url

    assert len(set(await asyncio.gather(*(one(i) for i in range(4))))) == 4
