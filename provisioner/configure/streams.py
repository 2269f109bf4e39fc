"""The process that follows nodes which run the roles themselves: request as JSON on stdin, the lines of
configure/worker.py on stdout, and more events: "unable" (a node cannot, and why), "note" (a warning), "done" (a node
is through, and nothing failed).

Each node is one ssh: ansible-runner's stream of `transmit` goes there, the events of its `worker` come back
(configure/node_supervisor.py). No process of Ansible's runs here. What a node sends is bounded, and names no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from provisioner.common import paths
from provisioner.common.bounded import Tail
from provisioner.common.text import printable
from provisioner.configure import inventory, node_archive
from provisioner.configure.node_archive import NodeArchive
from provisioner.configure.worker import FAILURES, record
from provisioner.transport import process, ssh_failure

FOLDER = "/var/lib/gpuprov/worker"
"""Of the archive on a node."""
PRIVATE = "/run/gpuprov-configure"
"""Of one run on a node: ansible-runner's private_data_dir there."""
COMMAND = "import sys; stdin = sys.stdin.buffer; exec(stdin.read(int(stdin.readline())))"
START = f"/usr/bin/python3 -I -c {shlex.quote(COMMAND)}"
AS_ROOT = f'if [ "$(id -u)" = 0 ]; then exec {START}; else exec sudo -n {START}; fi'
ANSWER_S, UPLOAD_S = 150.0, 900.0
"""Until a node answers, the end of an earlier run included; until it has the archive."""
DEADLINE_S = 4 * 3600
"""For the roles of one node; container images of 20 GB come over slow lines, too."""
SIGN_S, SILENCE_S = 15.0, 90
"""Between two signs that somebody waits; without one for so long a node ends its worker."""
LINE, TOTAL = 8 << 20, 128 << 20
"""Bytes of one line, and of all lines of a node, at most."""
CLOSE_S = 5.0
STARTS_PER_CORE = 8
"""Nodes that are connected to, or get the archive, at once."""
FILES_PER_STREAM, MEMORY_PER_STREAM = 4, 8 << 20
TRIES = 3
"""Connections that break are made again: the roles go on where they were."""
REBOOT = "ansible.builtin.reboot"
LAST_OUTPUT = 20
"""Lines of Ansible's output that stand for a cause where no task failed."""


class BrokenError(Exception):
    """A node's stream ended before its worker had said so. `is_ssh`: ssh itself failed."""

    def __init__(self, reason: str, *, is_ssh: bool = False) -> None:
        super().__init__(reason)
        self.is_ssh = is_ssh


@dataclass(slots=True)
class Stream:
    """What came from one node."""

    name: str
    argv: Sequence[str]
    task: str = ""
    status: str = ""
    failures: int = 0
    unable: str = ""
    received: int = 0
    output: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_OUTPUT))

    def cause(self) -> str:
        """The end of what Ansible printed; of a traceback the last line."""
        lines = [line for line in self.output if line.strip()] or [f"status {self.status or 'unknown'}"]
        is_traceback = any(line.startswith("  File ") for line in lines)
        return lines[-1] if is_traceback else " ".join(lines)[-800:]


class Streams:
    """All nodes of one request: {"nodes": {name: ssh's argv}, "inventory": file, "folder": for artifacts,
    "keep_events", "kwargs": of ansible_runner.run}."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.nodes: Mapping[str, Sequence[str]] = request["nodes"]
        self.inventory: dict[str, Any] = json.loads(Path(request["inventory"]).read_text(encoding="utf-8"))
        self.folder, self.keep_events = Path(request["folder"]), bool(request["keep_events"])
        self.kwargs: dict[str, Any] = request["kwargs"]
        self.archive: NodeArchive = node_archive.build()
        self.failed = False

    @cached_property
    def program(self) -> bytes:
        text = (resources.files("provisioner.configure") / "node_supervisor.py").read_bytes()
        return b"%d\n%s" % (len(text), text)

    @cached_property
    def request_line(self) -> bytes:
        request = {
            "python": node_archive.PYTHON_MIN, "modules": node_archive.PYTHON_MODULES, "folder": FOLDER,
            "private": PRIVATE,
            "digest": self.archive.digest, "manifest": self.archive.manifest,
            "events": "whole" if self.keep_events else "reduced", "deadline_s": DEADLINE_S, "silence_s": SILENCE_S,
        }  # fmt: skip
        return json.dumps(request).encode() + b"\n"

    async def all(self) -> None:
        """Follow every node, as many at once as this machine can."""
        process.allow_open_files(FILES_PER_STREAM * len(self.nodes))
        slots = asyncio.Semaphore(streams_at_once(len(self.nodes)))
        starts = asyncio.Semaphore(STARTS_PER_CORE * (os.cpu_count() or 1))

        async def follow_node(name: str, argv: Sequence[str]) -> None:
            async with slots:
                await self.node(Stream(name, argv), starts)

        try:
            async with asyncio.TaskGroup() as group:
                for name, argv in self.nodes.items():
                    group.create_task(follow_node(name, argv))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def node(self, stream: Stream, starts: asyncio.Semaphore) -> None:
        """One node to its end, whatever that is."""
        for attempt in range(1, TRIES + 1):
            try:
                await self._talk(stream, starts)
                if stream.status == "successful" and not stream.failures:
                    self._print({"event": "done", "host": stream.name})
                elif not stream.failures and not stream.unable:
                    raise BrokenError(f"Ansible did not run: {stream.cause()}")
            except (BrokenError, OSError, TimeoutError) as error:
                reason = str(error) or f"no answer within {ANSWER_S:.0f} s"
                is_ssh = isinstance(error, BrokenError) and error.is_ssh
                if is_ssh and attempt < TRIES:
                    self._report(stream, "retry", reason)
                    continue
                self._report(stream, "unreachable" if is_ssh else "failed", reason)
            return

    async def _talk(self, stream: Stream, starts: asyncio.Semaphore) -> None:
        errors, write_end = os.pipe()
        os.set_blocking(errors, False)
        try:
            child = await asyncio.create_subprocess_exec(
                *stream.argv, AS_ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=write_end,
                start_new_session=True, limit=LINE,
            )  # fmt: skip
        finally:
            os.close(write_end)
        complaints = Tail()
        try:
            try:
                assert child.stdout is not None
                await self._converse(stream, child, starts)
            finally:
                await _close(child)
                complaints.drain(errors)
        except (EOFError, ConnectionError, asyncio.IncompleteReadError):
            raise await self._broken(stream, child.returncode, complaints.text()) from None
        finally:
            os.close(errors)

    async def _broken(self, stream: Stream, status: int | None, complaints: str) -> BrokenError:
        """Why a stream ended early."""
        if ssh_failure.is_own(stream.argv, status):
            return BrokenError(await asyncio.to_thread(ssh_failure.explain, stream.argv, complaints), is_ssh=True)
        text = ssh_failure.error_text(complaints)
        if status == 127:
            return BrokenError(f"python3 is missing: {text or 'exit status 127'}")
        return BrokenError(f"ansible-runner's worker ended: {text or f'exit status {status}'}")

    async def _converse(self, stream: Stream, child: asyncio.subprocess.Process, starts: asyncio.Semaphore) -> None:
        """Start the worker on the node and read its lines to the last."""
        assert child.stdin is not None
        async with starts:
            child.stdin.write(self.program + self.request_line)
            answer = await self._answer(stream, child, ANSWER_S)
            if "need" in answer:
                if text := str(answer.get("refused", "")):
                    self._report(stream, "note", text)
                child.stdin.write(_sized(self.archive.content()))
                answer = await self._answer(stream, child, UPLOAD_S)
            if "unable" in answer:
                self._give_up(stream, str(answer["unable"]))
                return
            if "ready" not in answer:
                raise BrokenError("the answer of the supervisor is malformed")
            child.stdin.write(_sized(self._transmitted(stream.name)))
        signs = asyncio.create_task(_give_signs(child.stdin))
        try:
            async with asyncio.timeout(DEADLINE_S + ANSWER_S):
                while await self._line(stream, child):
                    pass
        except TimeoutError:
            raise BrokenError(f"no end within {DEADLINE_S} s") from None
        finally:
            signs.cancel()

    async def _answer(self, stream: Stream, child: asyncio.subprocess.Process, deadline_s: float) -> dict[str, Any]:
        """The supervisor's next answer; what a login prints is no part of it."""
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    line = await self._read(stream, child)
                    if line.startswith(b'{"gpuprov": '):
                        return _answer_of(json.loads(line))
        except TimeoutError:
            raise BrokenError(f"no answer within {deadline_s:.0f} s") from None
        except (ValueError, RecursionError):
            raise BrokenError("the answer of the supervisor is malformed") from None

    async def _read(self, stream: Stream, child: asyncio.subprocess.Process) -> bytes:
        assert child.stdout is not None
        try:
            line = await child.stdout.readline()
        except ValueError:
            raise BrokenError(f"a line of more than {LINE >> 20} MiB") from None
        stream.received += len(line)
        if stream.received > TOTAL:
            raise BrokenError(f"sent more than {TOTAL >> 20} MiB")
        if not line:
            raise EOFError
        return line

    async def _line(self, stream: Stream, child: asyncio.subprocess.Process) -> bool:
        """Read one line of the worker's; False for its last one."""
        line = await self._read(stream, child)
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            stream.output.append(str(printable(line.decode(errors="replace").strip()))[:400])
            return True
        if not isinstance(document, dict):
            return True
        if "gpuprov" in document:
            _answer_of(document)
        elif "eof" in document:
            return False
        elif "event" in document:
            self._event(stream, document)
        elif "status" in document:
            stream.status = str(document["status"])
            if "job_explanation" in document:
                stream.output.append(str(printable(str(document["job_explanation"])))[:400])
        return True

    def _event(self, stream: Stream, event: dict[str, Any]) -> None:
        """One of Ansible's events: to artifacts, and to whoever reads us."""
        text = str(event.get("stdout") or "")
        if text:
            stream.output.append(str(printable(text))[:400])
            self._append(stream, text)
        data = event.get("event_data")
        if event.get("event") == "runner_on_failed" and isinstance(data, dict) and data.get("task_action") == REBOOT:
            self._give_up(stream, "it has to be rebooted in between, and Ansible goes on after that only from outside")
            return
        try:
            line = record(event)
        except (AttributeError, TypeError):
            return
        if line is None or stream.unable:
            return
        failed = line["event"] in FAILURES
        stream.failures += failed
        stream.task = str(line["task"])[:400] or stream.task
        if self.keep_events or failed:
            self._keep(stream, event)
        if line["event"] == "error" or line["host"]:
            self._print({**line, "host": stream.name})

    def _give_up(self, stream: Stream, reason: str) -> None:
        stream.unable = reason
        self._print({"event": "unable", "host": stream.name, "message": reason[:400]})

    def _report(self, stream: Stream, event: str, message: str) -> None:
        task = stream.task or "Run Ansible on the node"
        self.failed |= event in FAILURES
        self._print({"event": event, "host": stream.name, "task": task, "changed": False, "message": message})

    def _print(self, line: dict[str, Any]) -> None:
        self.failed |= line["event"] in FAILURES
        sys.stdout.write(json.dumps(printable(line)) + "\n")
        sys.stdout.flush()

    def _artifacts(self, stream: Stream) -> Path:
        return self.folder / "artifacts" / stream.name

    def _append(self, stream: Stream, text: str) -> None:
        if not (folder := self._artifacts(stream)).is_dir():
            paths.private_dir(folder)
        with (folder / "stdout").open("a", encoding="utf-8", errors="replace") as out:
            out.write(text + "\n")

    def _keep(self, stream: Stream, event: dict[str, Any]) -> None:
        folder = self._artifacts(stream) / "job_events"
        if not folder.is_dir():
            paths.private_dir(folder)
        number = int(event["counter"]) if isinstance(event.get("counter"), int) else 0
        with (folder / f"{number}.json").open("w", encoding="utf-8") as out:
            json.dump(event, out)

    def _transmitted(self, name: str) -> bytes:
        """ansible-runner's stream for one node: its own variables, and the files that they name."""
        import ansible_runner

        with tempfile.TemporaryDirectory(dir=self.folder) as folder, tempfile.TemporaryFile(dir=self.folder) as output:
            root = Path(folder)
            document, files = inventory.of_one_node(self.inventory, name, f"{PRIVATE}/files")
            (root / "inventory").mkdir()
            (root / "inventory" / "hosts.json").write_text(json.dumps(document), encoding="utf-8")
            (root / "files").mkdir()
            for file_name, source in files.items():
                (root / "files" / file_name).write_bytes(source.read_bytes())
            ansible_runner.run(
                streamer="transmit", private_data_dir=folder, _output=output, suppress_env_files=True, limit=name,
                cancel_callback=lambda: False, **self._kwargs(),
            )  # fmt: skip
            output.seek(0)
            content: bytes = output.read()
        return content

    def _kwargs(self) -> dict[str, Any]:
        """Of ansible_runner.run, with the paths of a node."""
        root = f"{FOLDER}/{self.archive.manifest[:32]}"
        settings = {
            "ANSIBLE_ROLES_PATH": f"{root}/ansible/roles", "ANSIBLE_LIBRARY": f"{root}/ansible/plugins/modules",
            "ANSIBLE_CONFIG": f"{root}/ansible/ansible.cfg",
        }  # fmt: skip
        return {
            **self.kwargs, "project_dir": f"{root}/ansible/playbooks", "playbook": "site.yml", "forks": 1,
            "envvars": {**self.kwargs["envvars"], **settings},
            "extravars": {"health_archive": f"{root}/{node_archive.HEALTH}", "ansible_become": False,
                          "ansible_connection": "local"},
        }  # fmt: skip


def streams_at_once(nodes: int) -> int:
    """How many of so many nodes this machine can follow at once."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    by_files = nodes if soft == resource.RLIM_INFINITY else (soft - process.OTHER_OPEN_FILES) // FILES_PER_STREAM
    by_memory = available_memory() // MEMORY_PER_STREAM
    return max(1, min(nodes, by_files, by_memory))


def available_memory() -> int:
    """Bytes that the kernel can give without swapping (proc_meminfo(5))."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _answer_of(document: dict[str, Any]) -> dict[str, Any]:
    """What the supervisor says. Raises BrokenError where that is an error."""
    answer = printable(document["gpuprov"])
    if not isinstance(answer, dict):
        raise BrokenError("the answer of the supervisor is malformed")
    if "error" in answer:
        raise BrokenError(str(answer["error"])[:800])
    return answer


def _sized(content: bytes) -> bytes:
    return b"%d\n%s" % (len(content), content)


async def _give_signs(stdin: asyncio.StreamWriter) -> None:
    """Tell the node now and again that somebody waits."""
    with contextlib.suppress(ConnectionError):
        while True:
            await stdin.drain()
            await asyncio.sleep(SIGN_S)
            stdin.write(b"\n")


async def _close(child: asyncio.subprocess.Process) -> None:
    """End the connection: the node ends what it runs by that."""
    assert child.stdin is not None
    with contextlib.suppress(ConnectionError):
        child.stdin.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await child.wait()
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


async def _follow(streams: Streams) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    await streams.all()


def main() -> int:
    """Follow the request's nodes. 0: all are well or cannot; 2: a node failed; 130: interrupted."""
    streams = Streams(json.load(sys.stdin))
    try:
        asyncio.run(_follow(streams))
    except asyncio.CancelledError:
        return 130
    return 2 if streams.failed else 0


if __name__ == "__main__":
    sys.exit(main())
