"""fio on the node's scratch filesystem (fio.json).

Runs only where a level asks for it, after the load. fio.json says what became of it:
{"state": "ran", "busy" or "absent", "why", "busy": [{"pid", "name"}], "place", "bytes", "free", "phases": {name: {"rc",
"timed_out", "seconds", "error", "output": fio's own JSON}}, "smart": {"before", "after": {disk: nvme-cli's JSON}}}.

The file has no name: it is taken out of its directory before anything is written, and fio opens it through this
process. So it is gone when the last of both has ended, whatever ended them, and nobody else can open it.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from typing import Any

from provisioner.verify.probe.host_disks import smart
from provisioner.verify.probe.load import occupied
from provisioner.verify.probe.runner import COLLECTORS, PATH, lines_of, result, run

SHARE = 4
"""A file takes at most this part of what is free."""
LEAST = 256 << 20
"""Bytes below which nothing is measured."""
BLOCK = 1 << 20
SLACK_S = 20.0
"""For fio to start, to sync at the end and to write its document."""
COMMON = ("--output-format=json", "--ioengine=libaio", "--direct=1", "--thread", "--group_reporting",
          "--fallocate=none", "--allow_file_create=0", "--randrepeat=0")  # fmt: skip


def fio(seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Write once, read it, and read it in small pieces; each part has its own seconds, and `seconds` is for all."""
    load_request = request["load"]
    scratch = load_request["scratch"]
    folder, maximum = scratch["place"], int(scratch["bytes"])
    holders = occupied(load_request["vendor"])
    if holders is None:
        return _fio_document(state="absent", why="cannot tell whether a job is using the GPUs")
    if holders:
        return _fio_document(state="busy", busy=holders)
    if shutil.which("fio", path=PATH) is None:
        return _fio_document(state="absent", why="fio is not installed")
    if folder not in [line.split(" ")[1] for line in lines_of("/proc/self/mounts") if line.count(" ") > 1]:
        return _fio_document(state="absent", why="nothing is mounted on " + folder)
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    size = min(maximum, free // SHARE) // (SHARE * BLOCK) * (SHARE * BLOCK)
    if size < min(LEAST, maximum):
        return _fio_document(state="absent", why=f"only {free >> 20} MiB are free on {folder}", free=free)
    content: dict[str, Any] = {"state": "ran", "place": folder, "bytes": size, "free": free, "phases": {}}
    content["smart"] = {"before": smart()}
    try:
        _measure(content["phases"], size, scratch, seconds)
    except OSError as error:  # a filesystem that is read-only, or fails
        content["phases"].setdefault("write", {"rc": 1, "timed_out": False, "seconds": 0.0, "error": str(error)})
    content["smart"]["after"] = smart()
    return _fio_document(**content)


def _measure(phases: dict[str, Any], size: int, scratch: dict[str, Any], seconds: float) -> None:
    with tempfile.TemporaryFile(dir=scratch["place"]) as file:
        os.ftruncate(file.fileno(), size)
        name = f"--filename=/proc/{os.getpid()}/fd/{file.fileno()}"
        for phase, options, runtime in _phases(size, scratch):
            out = run(["fio", "--name=" + phase, *COMMON, name, *options], min(runtime + SLACK_S, seconds))
            phases[phase] = {
                "rc": out["rc"], "timed_out": out["timed_out"], "seconds": out["seconds"], "error": out["error"],
                "output": out["text"][: 1 << 17],
            }  # fmt: skip
            # What was not written would be read without the disk: then there is nothing to measure.
            if out["rc"] != 0 or (phase == "write" and _written(out["text"]) < size):
                break


def _phases(size: int, scratch: dict[str, Any]) -> list[tuple[str, list[str], float]]:
    """(name, options, seconds) of each part; two passes of the file at most are written."""
    write_s, read_s = float(scratch["write_s"]), float(scratch["read_s"])
    sequential = ["--bs=1M", "--iodepth=64", f"--size={size}"]
    write = [*sequential, "--rw=write", "--overwrite=1", "--end_fsync=1", f"--io_size={2 * size}"]
    part = size // 4
    jobs = ["--numjobs=4", "--time_based"]
    read = [*jobs, "--rw=read", "--bs=1M", "--iodepth=32", f"--size={part}", f"--offset_increment={part}"]
    random = [*jobs, "--rw=randread", "--bs=4k", "--iodepth=64", f"--size={size}"]
    return [
        ("write", [*write, f"--runtime={write_s:g}"], write_s),
        ("read", [*read, f"--runtime={read_s:g}"], read_s),
        ("random", [*random, f"--runtime={read_s:g}"], read_s),
    ]


def _written(text: str) -> int:
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        return int(json.loads(text[text.index("{") :])["jobs"][0]["write"]["io_bytes"])
    return 0


def _fio_document(**content: Any) -> dict[str, Any]:
    return result(json.dumps(content), 0)


COLLECTORS["fio.json"] = fio
