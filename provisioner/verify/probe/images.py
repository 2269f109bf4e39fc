"""Images of the lock on a node: which of them are there, and the versions that python3 in each of them has.

Standard library only, Python 3.8 or newer. Nothing is pulled and no container stays.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from provisioner.verify.probe.job import job_options, unwritten
from provisioner.verify.probe.runner import COLLECTORS, result, run

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


def images(requested: list[dict[str, str]], deadline: float) -> dict[str, Any]:
    """Which of the images are there: by the name that was pulled and by the name that people write."""
    names: list[str] = []
    for image in requested:
        names += [name for name in (image.get("pull"), image.get("reference")) if name and name not in names]
    out = run(["docker", "image", "inspect", "--format", INSPECT, *names], deadline)
    errors = [line for line in out["error"].splitlines() if "no such image" not in line.lower()]
    if out["rc"] == 1 and not errors and not out["text"].strip():
        out.update(text="[]", rc=0)
    return out


def framework(requested: list[dict[str, str]], deadline: float) -> dict[str, Any]:
    """Ask python3 in every image for its versions, all images at once, in the environment of a job; no network, nothing
    pulled, nothing kept."""
    reports: list[dict[str, Any] | None] = [None] * len(requested)

    def ask(i: int, image: dict[str, str]) -> None:
        # A name of its own, so that a container which does not end can be removed.
        name = f"gpuprov-probe-{os.getpid()}-{i}"
        pull = image.get("pull") or image["reference"]
        options = job_options(pull, network=False)
        command = ["docker", "run", "--rm", "--name", name, "--pull=never", *(options or ())]
        command += ["--entrypoint", "python3", pull, "-c", VERSIONS]
        out = run(command, deadline) if options is not None else result(error=unwritten(pull))
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
    threads = [threading.Thread(target=ask, args=(i, image), daemon=True) for i, image in enumerate(requested)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + deadline + 7 - time.monotonic()))
    done = [
        report or {"reference": image["reference"], "rc": None, "timed_out": True, "missing": False, "output": ""}
        for image, report in zip(requested, reports)  # noqa: B905 (Python 3.8)
    ]
    missing = bool(done) and all(report["missing"] for report in done)
    text = "" if missing else json.dumps({"images": done})
    error = "docker is not installed" if missing else ""
    return result(text, 0, time.monotonic() - started, missing=missing, error=error)


COLLECTORS.update(
    {
        "container-images.json": lambda seconds, request: images(request.get("images", []), seconds),
        "framework.json": lambda seconds, request: framework(request.get("images", []), seconds),
    }
)
