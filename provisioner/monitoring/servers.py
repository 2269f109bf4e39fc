"""A Prometheus and an Alertmanager of this machine, on loopback, for as long as a command needs them."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner.common.errors import GpuprovError

PROMETHEUS = ("prometheus",)
ALERTMANAGER = ("prometheus-alertmanager", "alertmanager")
"""Names of the programs: Debian's and Ubuntu's package, then the project's own archive."""
_ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""Asks loopback, whatever proxy the environment has."""
READY_S = 120.0
ANSWER_S = 60.0
PAUSE_S = 0.2
LOG_LINES = 20


def tool(names: Sequence[str]) -> str:
    """The path of the first program of these names in PATH. Raises GpuprovError."""
    if (path := next(filter(None, map(shutil.which, names)), None)) is None:
        raise GpuprovError(
            f"{names[0]} is not installed on this computer",
            hint="Debian and Ubuntu: sudo apt-get install --no-install-recommends prometheus prometheus-alertmanager",
        )
    return path


@contextlib.contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """A server with the prometheus.yml of a folder, which also gets its data. Gives the URL."""
    arguments = [
        tool(PROMETHEUS), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with running(arguments, folder, f"{url}/-/ready"):
        yield url


@contextlib.contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """A server with the alertmanager.yml of a folder, which also gets its data. Gives HOST:PORT."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        tool(ALERTMANAGER), "--config.file=alertmanager.yml", "--storage.path=alerts",
        f"--web.listen-address={address}", "--cluster.listen-address=",
    ]  # fmt: skip
    with running(arguments, folder, f"http://{address}/-/ready"):
        yield address


def free_port() -> int:
    """A TCP port of loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get(url: str, parameters: Mapping[str, str | Sequence[str]] | None = None) -> Any:
    """The JSON document of an answer, that of an error included. Raises OSError."""
    address = f"{url}?{urllib.parse.urlencode(parameters, doseq=True)}" if parameters else url
    try:
        with _ask(address, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def query(url: str, expr: str) -> list[dict[str, Any]]:
    """The series of an instant query, now. Raises GpuprovError for one that Prometheus refuses."""
    answer = get(f"{url}/api/v1/query", {"query": expr})
    if answer.get("status") != "success":
        raise GpuprovError(f"Prometheus refuses {expr}: {answer.get('error')}")
    return list(answer["data"]["result"])


@contextlib.contextmanager
def running(arguments: Sequence[str], folder: Path, ready_url: str) -> Iterator[None]:
    """A server, once that page of it answers. Its log goes to the folder. Raises GpuprovError."""
    log = folder / f"{Path(arguments[0]).name}.log"
    with log.open("w", encoding="utf-8") as stream:
        server = subprocess.Popen(
            list(arguments), cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            start_new_session=True,  # Ctrl-C is for us, who end it
        )  # fmt: skip
        try:
            _wait(ready_url, server, log)
            yield
        finally:
            server.terminate()
            try:
                server.wait(READY_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not _is_ready(url) or server.poll() is not None:  # another server may have the port
        if server.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
            state = f"ended with status {server.returncode}" if server.returncode is not None else "does not answer"
            raise GpuprovError(f"{log.stem} {state}: {' | '.join(lines)}")
        time.sleep(PAUSE_S)


def _is_ready(url: str) -> bool:
    try:
        with _ask(url, timeout=10):
            return True
    except (OSError, http.client.HTTPException):
        return False
