"""`verify.reboot`: a new machine that is right until its next boot is not handed over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]
DEADLINE_S = 400


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[SandboxCluster]:
    sandbox_cluster = SandboxCluster.of_example("rtx4090", tmp_path, count=2)
    document = yaml.safe_load(sandbox_cluster.file.read_text())
    document["verify"] = {"reboot": "first"}
    sandbox_cluster.file.write_text(yaml.safe_dump(document, sort_keys=False))
    try:
        yield sandbox_cluster
    finally:
        sandbox_cluster.down()


def event_messages(sandbox_cluster: SandboxCluster) -> list[str]:
    """What the newest run has said until now."""
    newest = max(sandbox_cluster.root.glob("runs/*/events.jsonl"), default=None)
    return [json.loads(line)["message"] for line in newest.read_text().splitlines()] if newest else []


def test_what_breaks_with_the_second_boot_is_found_before_the_first_job(desk: SandboxCluster) -> None:
    process = desk.start("up", desk.file, "--sandbox", "--yes", "--json")
    until = time.monotonic() + DEADLINE_S
    while "rebooting box-0" not in event_messages(desk):
        assert process.poll() is None and time.monotonic() < until, event_messages(desk)
        time.sleep(0.05)
    assert desk.run("sandbox", "fault", desk.file, "box-0", "gpu-lost").status == 0
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, err
    verdict = json.loads(out)
    failures = failing(verdict)  # container.cdi too, where the fault came before what writes it at boot
    assert [*failures] == ["box-0"] and "gpu.count" in failures["box-0"]
    (node,) = (row for row in verdict["nodes"] if not row["ok"])
    (check,) = (row for row in node["checks"] if row["id"] == "gpu.count")
    assert check["message"].startswith("after a reboot: ")
    assert "rebooting box-1" not in event_messages(desk)

    assert desk.run("sandbox", "clear", desk.file).status == 0
    second = desk.up()
    assert second.status == 0, wrongs(second)
    assert "rebooting box-0" in event_messages(desk), "it was never handed over"
    assert "rebooting box-1" not in event_messages(desk), "it was, and a job may run there"
    third = desk.up()
    assert third.status == 0, wrongs(third)
    assert not any("reboot" in line for line in event_messages(desk))
