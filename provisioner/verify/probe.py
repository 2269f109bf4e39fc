"""Runs on a node: every command of a bundle at once, each with its deadline; one line of JSON comes out.

Standard library only, Python 3.8 or newer. Sent over ssh's standard input in one round trip; collect.py appends the
call of `main` with the request. Nothing is installed, written or changed on the node.

The request: {"deadline": seconds for everything, "files": {name: seconds}, "images": [{"reference", "pull"}],
"gpus": [docker's options that give a container the GPUs], "gpu_count": n, "port": of the DCGM exporter,
"units": [names], "shared": [paths], "diag": dcgmi's run level, "load": {"vendor", "program", "image", "reference",
"options", "settle", "scratch": {"place", "bytes", "write_s", "read_s"}}}.
With "load" the files are made one after the other, in their order, because each of them loads the node.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import stat
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
PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/amazon/efa/bin:/opt/rocm/bin:/usr/local/cuda/bin"
)
ROCM = "--showproductname --showmeminfo vram --showdriverversion --showbus --showserial --showuniqueid"

COMMANDS = {
    "nvidia-smi.xml": ["nvidia-smi", "-q", "-x"],
    "topo.txt": ["nvidia-smi", "topo", "-m"],
    "nvlink.txt": ["nvidia-smi", "nvlink", "-s"],
    "nvlink-errors.txt": ["nvidia-smi", "nvlink", "-e"],
    "dmesg.txt": ["dmesg"],
    "ibstat.txt": ["ibstat"],
    "fi_info.txt": ["fi_info", "-p", "efa"],
    "lspci.txt": ["lspci", "-Dnn"],
    "lsblk.json": ["lsblk", "--json", "--bytes", "--output", "NAME,TYPE,SIZE,ROTA,SERIAL,MODEL,MOUNTPOINT,FSTYPE"],
    "rocm-smi.json": ["rocm-smi", *ROCM.split(), "--json"],
    "packages.txt": ["dpkg-query", "-W", "-f", "${binary:Package}\t${Version}\t${db:Status-Abbrev}\n"],
    "fabricmanager.txt": ["systemctl", "status", "nvidia-fabricmanager", "--no-pager", "--full"],
    "services.txt": ["systemctl", "list-units", "--state=failed", "--no-legend", "--plain", "--no-pager"],
    "kernel.txt": ["uname", "-r"],
    "unattended.txt": ["apt-config", "dump"],
}
MERGED = ("ibstat.txt", "fi_info.txt", "topo.txt", "nvlink.txt", "nvlink-errors.txt")
"""Tools that complain on standard error in the middle of their answer."""

UNIT = "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result"
DRIVER = {"nvidia-version.txt": "/proc/driver/nvidia/version", "nvidia-params.txt": "/proc/driver/nvidia/params"}
STAMP = ("/etc/gpuprov/node.json",)
REBOOT = ("/run/reboot-required", "/run/reboot-required.pkgs")
INTERRUPTION = ("/run/gpuprov/interruption.json", "/etc/gpuprov/interrupted")
INSPECT = '{"Id":{{json .Id}},"RepoTags":{{json .RepoTags}},"RepoDigests":{{json .RepoDigests}}}'

VERSIONS = """
import json, sys
out = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    import torch
    out["torch"], out["cuda"] = torch.__version__, torch.version.cuda
    try:
        nccl = torch.cuda.nccl.version()
        out["nccl"] = ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl)
    except Exception as error:
        out["nccl_error"] = str(error)[:200]
    out["gpus"] = torch.cuda.device_count()
except Exception as error:
    out["error"] = ("%s: %s" % (type(error).__name__, error))[:300]
print(json.dumps(out))
"""


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


def run(argv: list[str], deadline: float, merge: bool = False, limit: int = LIMIT) -> dict[str, Any]:
    """Run one command. After its deadline its process group is killed; what cannot be killed is left behind."""
    started = time.monotonic()
    environment = {"PATH": PATH, "LC_ALL": "C", "HOME": "/root", "TERM": "dumb"}
    program = shutil.which(argv[0], path=PATH)
    if program is None:
        return result(missing=True, error=argv[0] + " is not installed")
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return result(missing=True, error=str(error))
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
    streams: dict[int, list[bytes]] = {pipe.fileno(): [] for pipe in pipes}
    kept = dict.fromkeys(streams, 0)
    waiting, truncated, timed_out = set(streams), False, False
    while waiting:
        left = started + deadline - time.monotonic()
        if left <= 0:
            timed_out = True
            break
        # A daemon that the command left behind can hold the pipe: the command's own end is enough. It is asked first,
        # so that what the command wrote before its end is in the pipe when select looks.
        ended = process.poll() is not None
        ready = select.select(list(waiting), [], [], min(left, 0.5))[0]
        if not ready and ended:
            break
        for stream in ready:
            chunk = os.read(stream, 65536)
            if not chunk:
                waiting.discard(stream)
            elif kept[stream] < limit:
                kept[stream] += len(chunk)
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
    text, said = [b"".join(chunks) for chunks in streams.values()] + ([b""] if merge else [])
    return result(
        text.decode("utf-8", "replace"),
        None if timed_out else process.returncode,
        time.monotonic() - started,
        timed_out,
        False,
        truncated,
        said.decode("utf-8", "replace").strip(),
    )


def short(answer: dict[str, Any]) -> dict[str, Any]:
    """nvidia-smi's document without the lists of clocks that a GPU could have, which are nine tenths of it."""
    answer["text"] = re.sub(r"<supported_clocks>.*?</supported_clocks>\s*", "", answer["text"], flags=re.S)
    return answer


BEFORE = ["journalctl", "-k", "-b", "-1", "-o", "short-monotonic", "--no-hostname", "--no-pager", "-q", "-n", "20000"]
"""The kernel log of the boot before, where the journal is kept (journald.conf(5), Storage=)."""


def kernel_log(deadline: float, command: list[str] | None = None) -> dict[str, Any]:
    """dmesg, bounded: of a flood every line about GPUs and PCIe errors is kept, and the end."""
    out = run(command or ["dmesg"], deadline)
    if len(out["text"]) > KEEP:
        words = (
            "NVRM",
            "SXid",
            "nvidia",
            "AER",
            "fallen off",
            "Linux version",
            "Hardware Error",
            "EDAC",
            "amdgpu",
            "mlx5",
        )
        head = [line for line in out["text"][:-KEEP].split("\n") if any(word in line for word in words)]
        kept = "\n".join(head)
        out["truncated"] = out["truncated"] or len(kept) > KEEP
        out["text"] = kept[-KEEP:] + "\n" + out["text"][-KEEP:].partition("\n")[2]
    return out


def holds(deadline: float) -> dict[str, Any]:
    """What `apt-mark showhold` prints, from dpkg, where the hold is kept: half a second of work less."""
    out = run(["dpkg-query", "-W", "-f", "${db:Status-Want} ${binary:Package}\n"], deadline)
    names = [line[5:] for line in out["text"].splitlines() if line.startswith("hold ")]
    if out["rc"] == 0:
        out["text"] = "".join(name + "\n" for name in names)
    return out


def exporter(port: int, deadline: float) -> dict[str, Any]:
    """A real scrape. rc as curl's: 7 refused, 22 not status 200, 28 too slow."""
    started = time.monotonic()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=deadline)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(LIMIT)
    except OSError as error:
        slow = isinstance(error, TimeoutError) or "timed out" in str(error)
        return result("", 28 if slow else 7, time.monotonic() - started, error=str(error))
    except http.client.HTTPException as error:
        return result("", 22, time.monotonic() - started, error=f"no HTTP answer: {error!r}")
    rc = 0 if answer.status == 200 else 22
    seconds = time.monotonic() - started
    return result(body.decode("utf-8", "replace"), rc, seconds, error="" if rc == 0 else f"HTTP {answer.status}")


def read_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 (a plain script)
            return result(stream.read(LIMIT).decode("utf-8", "replace"), 0)
    except OSError as error:
        return result(missing=True, error=str(error))


def files_there(paths: tuple[str, ...]) -> dict[str, Any]:
    """What those of the files that exist hold, one after the other; that none exists is an answer too."""
    found = [read_file(path) for path in paths if os.path.lexists(path)]
    broken = [one for one in found if one["missing"]]
    return broken[0] if broken else result("".join(one["text"] for one in found), 0)


def interruption(record: str, hook: str) -> dict[str, Any]:
    """What the node's watcher wrote (None: nothing), and the sha256 of its hook ("": there is none)."""
    found: list[Any] = []
    for path in (record, hook):
        answer = read_file(path)
        if answer["missing"] and os.path.lexists(path):
            return answer
        found.append(None if answer["missing"] else answer["text"])
    digest = "" if found[1] is None else hashlib.sha256(found[1].encode()).hexdigest()
    return result(json.dumps({"record": found[0], "hook": digest}), 0)


def device_nodes() -> dict[str, Any]:
    """What `ls -l /dev/nvidia*` prints, without a program: type and rights, device numbers, name."""
    rows = []
    for name in sorted(os.listdir("/dev")):  # noqa: PTH208 (a plain script)
        if name.startswith("nvidia"):
            with contextlib.suppress(OSError):
                seen = os.lstat("/dev/" + name)
                number = f"{os.major(seen.st_rdev)}, {os.minor(seen.st_rdev)}"
                owner = f"{seen.st_uid} {seen.st_gid}"
                rows.append(f"{stat.filemode(seen.st_mode)} 1 {owner} {number} /dev/{name}\n")
    return result("".join(rows), 0, missing=not rows, error="" if rows else "there is no /dev/nvidia*")


RDMA = "/sys/class/infiniband"
DEVICE_FILES = (
    "fw_ver", "hca_type", "board_id", "device/numa_node", "device/current_link_speed", "device/current_link_width",
    "device/max_link_width", "device/p2p",
)  # fmt: skip
PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")


def rdma() -> dict[str, Any]:
    """RDMA devices as the kernel shows them, file by file; a file that can't be read is left out."""
    found: dict[str, Any] = {}
    for device in listed(RDMA):
        base = RDMA + "/" + device
        row: dict[str, Any] = texts(base, DEVICE_FILES)
        row["ports"] = {}
        for port in listed(base + "/ports"):
            where = base + "/ports/" + port
            one: dict[str, Any] = texts(where, PORT_FILES)
            one["counters"] = {}
            for kind in ("counters", "hw_counters"):
                one["counters"].update(texts(where + "/" + kind, listed(where + "/" + kind)))
            one["pkeys"] = list(texts(where + "/pkeys", listed(where + "/pkeys")[:128]).values())
            one["gids"] = texts(where + "/gids", listed(where + "/gids")[:256])
            one["gid_types"] = texts(where + "/gid_attrs/types", list(one["gids"]))
            row["ports"][port] = one
        found[device] = row
    verbs = [texts("/sys/class/infiniband_verbs/" + name, ["ibdev"]).get("ibdev") for name in listed("/dev/infiniband")]
    return result(json.dumps({"devices": found, "uverbs": [name for name in verbs if name]}), 0)


def listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 (a plain script)
    except OSError:
        return []


def texts(folder: str, names: Iterable[str]) -> dict[str, str]:
    """What small files hold; an empty slot of a table (gids, their types) gives an error when it is read."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError), open(folder + "/" + name, "rb") as stream:  # noqa: PTH123
            found[name] = stream.read(4096).decode("utf-8", "replace").strip()
    return found


def images(wanted: list[dict[str, str]], deadline: float) -> dict[str, Any]:
    """Which of the images are there: by the name that was pulled and by the name that people write."""
    names: list[str] = []
    for image in wanted:
        names += [name for name in (image.get("pull"), image.get("reference")) if name and name not in names]
    out = run(["docker", "image", "inspect", "--format", INSPECT, *names], deadline)
    errors = [line for line in out["error"].splitlines() if "no such image" not in line.lower()]
    if out["rc"] == 1 and not errors and not out["text"].strip():
        out.update(text="[]", rc=0)
    return out


def framework(wanted: list[dict[str, str]], gpus: list[str], deadline: float) -> dict[str, Any]:
    """Ask python3 in every image for its versions, all images at once; no network, nothing pulled, nothing kept."""
    reports: list[dict[str, Any] | None] = [None] * len(wanted)

    def ask(i: int, image: dict[str, str]) -> None:
        # A name of its own, so that a container which does not end can be removed.
        name = f"gpuprov-probe-{os.getpid()}-{i}"
        command = ["docker", "run", "--rm", "--name", name, "--network", "none", "--pull=never"]
        command += [*gpus, "--entrypoint", "python3", image.get("pull") or image["reference"], "-c", VERSIONS]
        out = run(command, deadline)
        if out["timed_out"]:
            run(["docker", "rm", "--force", name], 5)
        reports[i] = {
            "reference": image["reference"],
            "rc": out["rc"],
            "timed_out": out["timed_out"],
            "missing": out["missing"],
            "output": out["text"],
            "error": out["error"],
        }

    started = time.monotonic()
    threads = [threading.Thread(target=ask, args=(i, image), daemon=True) for i, image in enumerate(wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + deadline + 7 - time.monotonic()))
    done = [
        report or {"reference": image["reference"], "rc": None, "timed_out": True, "missing": False, "output": ""}
        for image, report in zip(wanted, reports)  # noqa: B905 (Python 3.8)
    ]
    missing = bool(done) and all(report["missing"] for report in done)
    text = "" if missing else json.dumps({"images": done})
    error = "docker is not installed" if missing else ""
    return result(text, 0, time.monotonic() - started, missing=missing, error=error)


WALKS: dict[str, Callable[[float, dict[str, Any]], dict[str, Any]]] = {}
"""Files that are put together by other parts of the probe (probe_host.py, probe_load.py), which collect.py sends behind
this one: called with the deadline and the request. "beside" in a result holds results for further files."""


def job(name: str, seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    if name in WALKS:
        return WALKS[name](seconds, request)
    if name == "dmesg.txt":
        return kernel_log(seconds)
    if name == "dmesg-before.txt":
        return kernel_log(seconds, BEFORE)
    if name == "holds.txt":
        return holds(seconds)
    if name == "dcgm-exporter.prom":
        return exporter(int(request.get("port", 9400)), seconds)
    if name == "modules.txt":
        there = os.path.exists("/proc/modules")  # noqa: PTH110 (a plain script)
        return read_file("/proc/modules") if there else run(["lsmod"], seconds)
    if name in DRIVER:
        return read_file(DRIVER[name])
    if name == "nvidia-dev.txt":
        return device_nodes()
    if name == "os-release.txt":
        return read_file("/etc/os-release")
    if name == "rdma.json":
        return rdma()
    if name == "stamp.json":
        return files_there(STAMP)
    if name == "reboot.txt":
        return files_there(REBOOT)
    if name == "interruption.json":
        return interruption(*INTERRUPTION)
    if name == "units.txt":
        return run(["systemctl", "show", UNIT, "--no-pager", "--", *request.get("units", [])], seconds)
    if name == "container-images.json":
        return images(request.get("images", []), seconds)
    if name == "framework.json":
        return framework(request.get("images", []), request.get("gpus", []), seconds)
    if name == "all_reduce.txt":
        count = str(request.get("gpu_count", 1))
        return run(["all_reduce_perf", "-b", "1G", "-e", "8G", "-f", "2", "-g", count], seconds, merge=True)
    if name == "dcgmi-diag.json":
        return run(["dcgmi", "diag", "-r", str(request.get("diag", 1)), "-j"], seconds)
    answer = run(COMMANDS[name], seconds, merge=name in MERGED)
    return short(answer) if name == "nvidia-smi.xml" else answer


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that was asked for, by name; what is not done at the deadline is timed out."""
    started, slots = time.monotonic(), threading.Semaphore(PARALLEL)
    in_turn = bool(request.get("load"))
    done: dict[str, Any] = {}
    wanted: dict[str, float] = dict(request["files"])

    def work(name: str, seconds: float) -> None:
        with slots:
            begun = time.monotonic()
            try:
                found = job(name, seconds, request)
                done.update(found.pop("beside", {}))
                done[name] = found
            except Exception as error:  # one file must not cost the others
                done[name] = result("", None, time.monotonic() - begun, error=f"probe: {error!r}")

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in wanted.items()]
    for thread in threads:
        thread.start()
        if in_turn:
            thread.join(max(0.0, started + request["deadline"] - time.monotonic()))
    for thread in threads:
        thread.join(max(0.0, started + request["deadline"] - time.monotonic()))
    seconds = time.monotonic() - started
    late = {name: result("", None, seconds, timed_out=True) for name in wanted if name not in done}
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
    mine = f"name=^gpuprov-[a-z]+-{os.getpid()}(-[0-9]+)?$"
    remove = f"command -v docker && docker ps --all --quiet --filter '{mine}' | xargs -r docker rm --force"
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
