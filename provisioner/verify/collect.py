"""Fetch the raw outputs of all nodes at once: one round trip each, each within its deadline.

The probe goes to the node's `python3 -` by standard input and its one line of JSON comes back, compressed. A node that
cannot be reached, hangs or answers nonsense gives a bundle that says so; the others are not held up.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from time import monotonic, time

from provisioner.common.bounded import Tail
from provisioner.common.events import Events, Stage
from provisioner.transport import root_python, ssh_failure
from provisioner.verify.bundle import Bundle
from provisioner.verify.probe.runner import MARK
from provisioner.verify.request import CONNECTION_S, ProbeRequest

PART_IMPORTS = re.compile(r"^from (?:__future__|provisioner)\b[^(\n]*(?:\([^)]*\))?[^\n]*\n", re.M)


def probe_source() -> str:
    """The probe as one text: the modules of probe/ one after the other, runner.py first, without what one imports of
    the other. So no two of them may define the same name."""
    folder = resources("provisioner.verify") / "probe"
    parts = {part.name: part.read_text(encoding="utf-8") for part in folder.iterdir() if part.name.endswith(".py")}
    first = parts.pop("runner.py")
    return "\n".join([first, *(PART_IMPORTS.sub("", text) for name, text in sorted(parts.items()))])


LIMIT = 32 * 1024 * 1024
"""Bytes taken from one node, and of its answer when it is unpacked: about a hundred times a compressed answer, three
times an unpacked one."""
VALUES = 1_000_000
"""Lists and objects in an answer, at most: an empty one of three bytes takes seventy in memory. Braces within texts
count too; a real answer has some ten thousand."""


def collect(
    targets: Mapping[str, Sequence[str]],
    request: ProbeRequest | Mapping[str, ProbeRequest],
    *,
    deadline_s: float | None = None,
    parallel: int = 64,
    events: Events | None = None,
    stage: Stage = "verify",
) -> dict[str, Bundle]:
    """Probe every target at once, `parallel` at a time; `stage` is the one that its events are told under.

    A target is an argv prefix to which one shell command is appended and that runs it on the node (an ssh command line,
    or ["sh", "-c"]). `request` is one for all, or one for each name. `deadline_s` is for one node, connection and all;
    left out it is the probe's own and 20 s for the way. Never raises for a node: its bundle says what happened.
    """
    run = _Run(request, deadline_s, events or Events(), len(targets), stage)
    return asyncio.run(run.all(targets, parallel))


@dataclass(slots=True)
class _Run:
    request: ProbeRequest | Mapping[str, ProbeRequest]
    deadline_s: float | None
    events: Events
    total: int
    stage: Stage = "verify"
    done: int = 0
    source: str = field(default_factory=probe_source)

    async def all(self, targets: Mapping[str, Sequence[str]], parallel: int) -> dict[str, Bundle]:
        slots = asyncio.Semaphore(max(1, parallel))

        async def probe_node(name: str, target: Sequence[str]) -> Bundle:
            async with slots:
                bundle = await self.node(name, target)
            self.done += 1
            message = bundle.error or f"probed in {bundle.seconds or 0:.1f} s"
            kind = "warning" if bundle.error else "progress"
            self.events(self.stage, kind, message, node=name, done=self.done, total=self.total, unit="node")  # type: ignore[arg-type]
            return bundle

        names = list(targets)
        bundles = await asyncio.gather(*(probe_node(name, targets[name]) for name in names))
        return dict(zip(names, bundles, strict=True))

    async def node(self, name: str, target: Sequence[str]) -> Bundle:
        request = self.request if isinstance(self.request, ProbeRequest) else self.request[name]
        deadline = self.deadline_s if self.deadline_s is not None else request.deadline + CONNECTION_S
        program = root_python.text_of(self.source, request.to_json())
        started = monotonic()
        complaints = Tail()
        try:
            out, rc = await _talk([*target, root_python.ROOT_PYTHON], program.encode(), complaints, deadline)
        except TimeoutError:
            return Bundle(error=f"no answer within {deadline:.0f} s{_error_suffix(complaints)}")
        except OSError as error:
            return Bundle(error=f"{target[0] if target else 'nothing to run'}: {error.strerror or error}")
        except _TooMuchError:
            return Bundle(error=f"sent more than {LIMIT // 2**20} MiB")
        arrived = time()
        bundle = decode(out)
        if bundle.error and ssh_failure.is_own(target, rc) and NO_CONFIG not in (complaint := complaints.text()):
            reason = await asyncio.to_thread(ssh_failure.explain, target, complaint)
            return Bundle(error=f"ssh failed: {reason}")
        if bundle.error:
            return Bundle(error=f"{bundle.error} (exit status {rc}){_error_suffix(complaints)}")
        return replace(bundle, seconds=monotonic() - started, received=arrived)


NO_CONFIG = "Can't open user config file"
"""ssh's words where gpuprov has written no configuration for it: a run was killed between making and reaching nodes."""


class _TooMuchError(Exception):
    pass


async def _talk(argv: list[str], program: bytes, complaints: Tail, deadline: float) -> tuple[bytes, int | None]:
    """Run one command: program in, standard output back, the end of standard error to `complaints`. Raises
    TimeoutError, OSError, _TooMuchError."""
    errors, write_end = os.pipe()
    try:
        os.set_blocking(errors, False)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=write_end,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        # A pipe of our own, whose end nobody waits for: a connection that ssh keeps open for later holds it open too.
        loop = asyncio.get_running_loop()

        def read_errors() -> None:
            if not complaints.read(errors):
                loop.remove_reader(errors)

        loop.add_reader(errors, read_errors)
        try:
            answer = await _answer(process, program, deadline)
            complaints.drain(errors)
            return answer
        finally:
            loop.remove_reader(errors)
    finally:
        os.close(errors)


async def _answer(process: asyncio.subprocess.Process, program: bytes, deadline: float) -> tuple[bytes, int | None]:
    """What a command prints, and its exit status; it is killed where it has not ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(deadline):
            feeding = asyncio.create_task(_feed(process.stdin, program))
            chunks, size = [], 0
            while chunk := await process.stdout.read(1 << 18):
                size += len(chunk)
                if size > LIMIT:
                    raise _TooMuchError
                chunks.append(chunk)
            await feeding
            return b"".join(chunks), await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await process.wait()


async def _feed(stdin: asyncio.StreamWriter, program: bytes) -> None:
    try:
        with suppress(ConnectionError):  # the other end is gone: its exit status and complaints say why
            stdin.write(program)
            await stdin.drain()
    finally:
        stdin.close()
        with suppress(ConnectionError):  # Python 3.11.2 tells what nobody waits for on standard error
            await stdin.wait_closed()


def decode(out: bytes) -> Bundle:
    """The bundle in the last line that bears the probe's mark; banners are ignored. What is no answer, or one that
    cannot be read, is a bundle whose error says so."""
    marked = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith(MARK)]
    if not marked:
        return Bundle(error="no answer from the probe")
    try:
        unpack = zlib.decompressobj()
        text = unpack.decompress(base64.b64decode(marked[-1][len(MARK) :]), LIMIT)
        if unpack.unconsumed_tail:
            return Bundle(error=f"invalid answer from the probe: larger than {LIMIT // 2**20} MiB")
        if text.count(b"{") + text.count(b"[") > VALUES:
            return Bundle(error=f"invalid answer from the probe: more than {VALUES} values")
        document = json.loads(text)
    except (ValueError, zlib.error, RecursionError) as error:
        return Bundle(error=f"invalid answer from the probe: cut or damaged ({type(error).__name__})")
    if not isinstance(document, dict):
        return Bundle(error="invalid answer from the probe: not a JSON object")
    return Bundle.from_json(document)


def _error_suffix(complaints: Tail) -> str:
    """The end of what ssh, sudo or Python complained, as ": …"."""
    text = complaints.text()
    if NO_CONFIG in text:
        return ": no run has reached it yet, and `gpuprov up` goes on from there"
    return f": {line}" if (line := ssh_failure.error_text(text)) else ""
