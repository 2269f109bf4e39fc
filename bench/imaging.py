"""How much of `up` a golden image saves: the same fleet from the base image and from a golden one, in turn.

Both begin with nodes as bare as a cloud's own image is (GPUPROV_SANDBOX_BASE=cloud): the golden image is built on one,
the others are configured on it, and what the roles take from the distribution comes from Debian's mirror. The vendors'
packages and container images weigh nothing in the sandbox, so a real fleet saves more than this.
"""

from __future__ import annotations

import json
import re

from bench.fleet import GPUPROV, Fleet
from bench.measure import Failed, Timing, run
from bench.promises import Promise

NODES = 4
SHARE = 0.30
BARE = {"GPUPROV_SANDBOX_BASE": "cloud"}
RECIPE = """\
name: bench-p4d
sites: { virginia: { provider: aws, region: us-east-1, zones: [us-east-1a, us-east-1b] } }
groups: { p4d: { machine: p4d.24xlarge } }
stack: { driver: "580", containers: ["nvcr.io/nvidia/pytorch:25.10-py3"] }
image: { boots: 1 }
"""


def measure(runs: int) -> list[Promise]:
    """Four p4d nodes; both ways must end in the same verdict."""
    base = Fleet.of_example("aws-p4d", NODES, BARE)
    golden = Fleet.of_example("aws-p4d", NODES, BARE)
    recipe = golden.folder / "images" / "bench-p4d.yaml"
    recipe.parent.mkdir()
    recipe.write_text(RECIPE)
    text = golden.file.read_text()
    golden.file.write_text(re.sub(r"(?m)^(\s+)machine: p4d.24xlarge.*$", r"\g<0>\n\1image: bench-p4d@nightly", text))
    seconds: dict[str, list[float]] = {"base": [], "golden": []}
    stages: dict[str, list[dict[str, float]]] = {"base": [], "golden": []}
    verdicts: dict[str, object] = {}
    with base, golden:
        base.warm_cache()
        image_build = run([str(GPUPROV), "image", "build", str(recipe), "--sandbox", "--yes", "--json"], env=BARE)
        try:
            for name, fleet in (("base", base), ("golden", golden)) * runs:
                done = run(fleet.up, env=BARE)
                run(fleet.down, env=BARE)
                seconds[name].append(done.seconds)
                stages[name].append(json.loads(done.stdout)["seconds"])
                verdicts[name] = _verdict(done.stdout)
        finally:  # with the fleets' folders goes what knows of it
            run(["podman", "rmi", "--force", *json.loads(image_build.stdout)["targets"]["p4d"]["ids"].values()])
    if verdicts["base"] != verdicts["golden"]:
        raise Failed("a fleet of the golden image has another verdict than one of the base image")
    first, second = (Timing(tuple(seconds[name])) for name in ("base", "golden"))
    return [
        Promise(
            f"`up`, {NODES} p4d nodes, from a golden image", f"at most {SHARE:.2f} × from the base image",
            f"{second} against {first}", second.median / first.median, SHARE,
            numbers={"base": first.runs, "golden": second.runs, "build": image_build.seconds, "stages": stages},
        )
    ]  # fmt: skip


def _verdict(report: str) -> dict[str, dict[str, str]]:
    """Node → check → status, but for the check that tells the image."""
    nodes = json.loads(report)["nodes"]
    return {n["name"]: {c["id"]: c["status"] for c in n["checks"] if c["id"] != "image.build"} for n in nodes}
