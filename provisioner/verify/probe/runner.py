"""Runs on a node: every tool of a request at once, each with its deadline; one line of JSON comes out.

Standard library only, Python 3.8 or newer. Sent over ssh's standard input in one round trip, with the other modules of
this package behind it and a call of `main` with the request at the end. Nothing is installed or changed on the
node; what is written is a file on file systems of the network, which is removed again (shared.py).

The request: {"deadline": seconds for everything, "files": {name: seconds}, "tools": {name: {"argv", "merge", "omit",
"again": {"momentary", "training": patterns, "training_s": since boot, "files": further looks}} or
{"paths", "empty"}} (tool.py: Tool), "images": [{"reference", "pull"}], "gpu_count": n, "port": of the DCGM exporter,
"units": [names], "shared": [paths], "diag": dcgmi's run level, "wait": seconds between two looks,
"efa": devices for which it waits,
"load": {"vendor", "program", "image", "reference", "python", "options", "settle", "every", "during": [names],
"throughout": [names], "after": [names], "scratch": {"place", "bytes", "write_s", "read_s"}}}.
With "load" the files are made one after the other, in their order, because each of them loads the node.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

MARK = "@gpuprov-probe-1 "
LIMIT = 16 * 1024 * 1024
KEEP = 2 * 1024 * 1024
PARALLEL = 16
DRIVER = "/usr/local/nvidia"
"""Where a container, or a guest, gets the driver's programs and libraries from its host (README of
GoogleCloudPlatform/container-engine-accelerators cmd/nvidia_gpu; PATH and LD_LIBRARY_PATH of NVIDIA's CUDA images)."""
PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/amazon/efa/bin:/opt/rocm/bin:/usr/local/cuda/bin"
    f":{DRIVER}/bin"
)
ASK = 20.0
"""Seconds for each program: on a node at full load a start alone takes some."""


def result(
    text: str = "",
    rc: int | None = None,
    seconds: float = 0.0,
    timed_out: bool = False,
    missing: bool = False,
    truncated: bool = False,
    error: str = "",
) -> dict[str, Any]:
    return {
        "text": text,
        "rc": rc,
        "seconds": round(seconds, 3),
        "timed_out": timed_out,
        "missing": missing,
        "truncated": truncated,
        "error": error[-600:],
    }


def outcome(out: dict[str, Any]) -> dict[str, Any]:
    """A result without what the command printed."""
    return {key: out[key] for key in ("rc", "timed_out", "seconds", "error")}


def program_environment() -> dict[str, str]:
    """The environment of every program: nothing of the login's own."""
    libraries = {"LD_LIBRARY_PATH": DRIVER + "/lib64"} if os.path.isdir(DRIVER + "/lib64") else {}  # noqa: PTH112
    return {"PATH": PATH, "LC_ALL": "C", "HOME": "/root", "TERM": "dumb", **libraries}


def run(argv: list[str], deadline: float, merge: bool = False, limit: int = LIMIT) -> dict[str, Any]:
    """Run one command. After its deadline its process group is killed; what cannot be killed is left behind."""
    started = time.monotonic()
    program = shutil.which(argv[0], path=PATH)
    if program is None:
        return result(missing=True, error=argv[0] + " is not installed")
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=program_environment(),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return result(missing=True, error=str(error))
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    streams: dict[int, list[bytes]] = {pipe.fileno(): [] for pipe in pipes}
    byte_counts = dict.fromkeys(streams, 0)
    waiting, truncated, timed_out = set(streams), False, False
    while waiting:
        remaining_s = started + deadline - time.monotonic()
        if remaining_s <= 0:
            timed_out = True
            break
        # A daemon that the command left behind can hold the pipe: the command's own end is enough. It is asked first,
        # so that what the command wrote before its end is in the pipe when select looks.
        ended = process.poll() is not None
        ready = select.select(list(waiting), [], [], min(remaining_s, 0.5))[0]
        if not ready and ended:
            break
        for stream in ready:
            chunk = os.read(stream, 65536)
            if not chunk:
                waiting.discard(stream)
            elif byte_counts[stream] < limit:
                byte_counts[stream] += len(chunk)
                streams[stream].append(chunk)
            else:
                truncated = True
    while not timed_out and process.poll() is None:
        if time.monotonic() > started + deadline:
            timed_out = True
        else:
            time.sleep(0.01)
    if timed_out:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for _ in range(50):
            if process.poll() is not None:
                break
            time.sleep(0.02)
    for pipe in pipes:
        pipe.close()
    text, complaint = [b"".join(chunks) for chunks in streams.values()] + ([b""] if merge else [])
    return result(
        text.decode("utf-8", "replace"),
        None if timed_out else process.returncode,
        time.monotonic() - started,
        timed_out,
        False,
        truncated,
        complaint.decode("utf-8", "replace").strip(),
    )


def read_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 (a plain script)
            return result(stream.read(LIMIT).decode("utf-8", "replace"), 0)
    except OSError as error:
        return result(missing=True, error=str(error))


def files_there(paths: list[str]) -> dict[str, Any]:
    """What those of the files that exist hold, one after the other; that none exists is an answer too."""
    outputs = [read_file(path) for path in paths if os.path.lexists(path)]
    broken = [output for output in outputs if output["missing"]]
    return broken[0] if broken else result("".join(output["text"] for output in outputs), 0)


def at_once(ask: Callable[..., None], items: Iterable[tuple[Any, ...]], seconds: float) -> None:
    """Call `ask` with each of the items, all at the same time, and wait for each of them this long at most; one that
    takes longer goes on alone."""
    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)


def listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (a plain script)
    except OSError:
        return []


def pci_address(folder: str) -> str | None:
    """Where a device of /sys/class is plugged in (0000:18:00.0): what its link `device` leads to; None elsewhere."""
    name = os.path.basename(os.path.realpath(folder + "/device"))  # noqa: PTH119 (a plain script)
    return name if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else None


def texts(folder: str, names: Iterable[str]) -> dict[str, str]:
    """What small files hold; an empty slot of a table (gids, their types) gives an error when it is read."""
    contents = {}
    for name in names:
        with contextlib.suppress(OSError), open(folder + "/" + name, "rb") as stream:  # noqa: PTH123
            contents[name] = stream.read(4096).decode("utf-8", "replace").strip()
    return contents


def lines_of(path: str, limit: int = 1 << 20) -> list[str]:
    with open(path, "rb") as stream:  # noqa: PTH123
        return stream.read(limit).decode("utf-8", "replace").splitlines()


COLLECTORS: dict[str, Callable[[float, dict[str, Any]], dict[str, Any]]] = {}
"""Files that are more than one command's output or a file of the node: the other modules of this package register their
functions here. Each gets its deadline and the request; "beside" in a result holds results for further files."""


def job(name: str, seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Make one file of the request: by its function, or as its declaration says."""
    if name in COLLECTORS:
        return COLLECTORS[name](seconds, request)
    tool = request["tools"][name]
    if "paths" in tool:
        several = tool["empty"] or len(tool["paths"]) > 1
        return files_there(tool["paths"]) if several else read_file(tool["paths"][0])
    return look_again(tool, seconds, request.get("wait", LOOK_WAIT_S))


LOOK_WAIT_S = 5.0
"""Between two looks at what may be momentary."""


def look_again(tool: dict[str, Any], seconds: float, wait: float) -> dict[str, Any]:
    """The tool's answer, with further ones beside it while they show what may be momentary, all within its deadline."""
    started, repeat = time.monotonic(), tool.get("again", {"files": []})
    first = last = ask(tool, seconds)
    further: dict[str, Any] = {}
    for name in repeat["files"]:
        remaining_s = started + seconds - time.monotonic() - wait
        if not may_be_over(repeat, last) or remaining_s < 1.0:
            break
        time.sleep(wait)
        last = further[name] = ask(tool, remaining_s)
    return dict(first, beside=further) if further else first


def ask(tool: dict[str, Any], seconds: float) -> dict[str, Any]:
    answer = run(tool["argv"], seconds, merge=tool["merge"])
    if tool["omit"]:
        answer["text"] = re.sub(tool["omit"], "", answer["text"], flags=re.S)
    return answer


def may_be_over(repeat: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Whether an answer shows what may be momentary: by itself, or in the first minutes after a boot."""
    if repeat["momentary"] and re.search(repeat["momentary"], answer["text"]):
        return True
    if not repeat["training"] or not re.search(repeat["training"], answer["text"]):
        return False
    uptime = read_file("/proc/uptime")["text"].split(" ")[0]
    return not uptime or float(uptime) < repeat["training_s"]


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that was asked for, by name; what is not done at the deadline is timed out."""
    started, slots = time.monotonic(), threading.Semaphore(PARALLEL)
    in_turn = bool(request.get("load"))
    done: dict[str, Any] = {}
    deadlines: dict[str, float] = dict(request["files"])

    def work(name: str, seconds: float) -> None:
        with slots:
            begun = time.monotonic()
            try:
                answer = job(name, seconds, request)
                done.update(answer.pop("beside", {}))
                done[name] = answer
            except Exception as error:  # one file must not cost the others
                done[name] = result("", None, time.monotonic() - begun, error=f"probe: {error!r}")

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in deadlines.items()]
    for thread in threads:
        thread.start()
        if in_turn:
            thread.join(max(0.0, started + request["deadline"] - time.monotonic()))
    for thread in threads:
        thread.join(max(0.0, started + request["deadline"] - time.monotonic()))
    seconds = time.monotonic() - started
    late = {name: result("", None, seconds, timed_out=True) for name in deadlines if name not in done}
    return {"files": dict(late, **dict(done)), "collected": time.time(), "seconds": round(seconds, 3), "error": ""}


def end_with_reader() -> None:
    """Wait until nobody can read the answer any more (the connection has ended: gpuprov was killed, or the network
    failed); then end all that was started, so that no load goes on beside the next run's."""
    poll = select.poll()
    poll.register(1, 0)  # POLLERR and POLLHUP come unasked; a file has neither
    poll.poll()
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a plain script)
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{int(entry)}/stat", "rb") as stat:  # noqa: PTH123
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                os.killpg(int(entry), signal.SIGKILL)
    name_filter = f"name=^gpuprov-[a-z]+-{os.getpid()}(-[0-9]+)?$"
    remove = f"command -v docker && docker ps --all --quiet --filter '{name_filter}' | xargs -r docker rm --force"
    with contextlib.suppress(OSError):
        subprocess.Popen(
            ["sh", "-c", remove], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={"PATH": PATH, "HOME": "/root"}, cwd="/", start_new_session=True,
        )  # fmt: skip
    os._exit(1)


def main(request: dict[str, Any]) -> None:
    threading.Thread(target=end_with_reader, daemon=True).start()
    document = json.dumps(probe(request)).encode()
    line = MARK + base64.b64encode(zlib.compress(document, 6)).decode() + "\n"
    sys.stdout.write("\n" + line)
    sys.stdout.flush()
    os._exit(0)  # threads that wait for a hung command must not keep the node's sshd waiting
