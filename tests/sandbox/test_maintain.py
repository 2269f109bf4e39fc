"""`gpuprov maintain` on two nodes with real apt, docker and reboots: what is taken and what is not, a package that
breaks, a kill in the middle. One fleet, in the order of the tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.sandbox.deb import Deb
from tests.support.run_processes import until
from tests.support.sandbox_cluster import Done, SandboxCluster, wrongs
from tests.support.security_mirror import write_suite

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

MIRROR = "http://mirror.gpuprov.internal/distribution"
TOOL, KERNEL, HELD = "t-tool", "linux-image-t-generic", "t-held"
SETTINGS = """
hooks:
  drain: 'echo "$GPUPROV_STEP $GPUPROV_NODE $GPUPROV_ACTION" >> hooks'
  resume: 'echo "$GPUPROV_STEP $GPUPROV_NODE $GPUPROV_ACTION" >> hooks'
maintenance:
  window: { days: [mon, tue, wed, thu, fri, sat, sun], hours: 00:00-00:01, zone: UTC }
"""
SLOW = '#!/bin/sh\n[ "$1" = configure ] || exit 0\n: > /var/lib/waiting\nuntil [ -e /var/lib/go ]; do sleep 0.1; done\n'


def deb(name: str, version: str, **scripts: str) -> Deb:
    return Deb(name, version, "all", name, scripts=scripts)


class Desk:
    """The fleet, and the distribution's mirror beside it."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self.cluster = cluster
        self.mirror = Path()
        self.codename = ""

    def on(self, node: str, command: str) -> str:
        done = self.cluster.run("ssh", self.cluster.file, node, command)
        assert done.status == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def everywhere(self, command: str) -> None:
        done = self.cluster.run("exec", self.cluster.file, command)
        assert done.status == 0, (command, done.stdout, done.stderr)

    def prepare(self) -> None:
        """Three packages from the release; updates of them in both other suites; something to clean; a reboot."""
        container = next(name for name in self.cluster.containers() if ".mirror." in name)
        form = '{{range .Mounts}}{{if eq .Destination "/srv/mirror"}}{{.Source}}{{end}}{{end}}'
        argv = ["podman", "inspect", "--format", form, container]
        folder = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        self.mirror = Path(folder) / "http" / "distribution"
        self.codename = self.on("box-0", ". /etc/os-release; echo $VERSION_CODENAME").strip()
        write_suite(self.mirror, self.codename, [deb(name, "1.0") for name in (TOOL, KERNEL, HELD)])
        write_suite(self.mirror, f"{self.codename}-updates", [deb(TOOL, "1.5")])
        self.security("1.1")
        suites = " ".join(self.codename + suffix for suffix in ("", "-updates", "-security"))
        source = f"deb [trusted=yes] {MIRROR} {{}} main\\n"
        source = "".join(source.format(suite) for suite in suites.split())
        self.everywhere(
            f"printf '{source}' | sudo tee /etc/apt/sources.list.d/t.list >/dev/null && sudo apt-get -q update && "
            f"sudo apt-get -q -y install {TOOL}=1.0 {KERNEL}=1.0 {HELD}=1.0 && sudo apt-mark hold {HELD} && "
            "sudo mkdir -p /var/crash && sudo fallocate -l 150M /var/crash/old && "
            "sudo touch -d '60 days ago' /var/crash/old && sudo touch /var/crash/new /var/run/reboot-required && "
            "tar c --files-from /dev/null | sudo docker import - stale:1"
        )

    def security(self, version: str, **scripts: str) -> None:
        debs = [deb(TOOL, version, **scripts), deb(KERNEL, "1.1"), deb(HELD, "1.1")]
        write_suite(self.mirror, f"{self.codename}-security", debs)

    def maintain(self, *arguments: str) -> Done:
        return self.cluster.run("maintain", self.cluster.file, "--sandbox", "--yes", "--json", *arguments)

    def versions(self, node: str) -> dict[str, str]:
        form = "'${Package} ${Version}\\n'"
        output = self.on(node, f"dpkg-query -W -f {form} {TOOL} {KERNEL} {HELD}")
        return dict(line.split() for line in output.splitlines())

    def status(self) -> dict[str, dict[str, Any]]:
        document = self.cluster.run("status", self.cluster.file, "--json").json
        return {node["name"]: node for node in document["nodes"]}

    def hooks(self) -> list[str]:
        """What the hooks wrote down since the last look."""
        log = self.cluster.file.parent / "hooks"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    cluster = SandboxCluster.of_example("rtx4090", tmp_path_factory.mktemp("desk"), count=2)
    cluster.file.write_text(cluster.file.read_text() + SETTINGS)
    try:
        first = cluster.up()
        assert first.status == 0, (first.stderr, wrongs(first))
        test_desk = Desk(cluster)
        test_desk.prepare()
        yield test_desk
    finally:
        cluster.down()


def by_name(done: Done) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in done.json["nodes"]}


def test_outside_of_the_window_nothing_is_done(desk: Desk) -> None:
    refused = desk.maintain()
    assert refused.status == 2
    assert "the maintenance window is closed until" in refused.stderr and "--now" in refused.stderr


def test_a_dry_run_says_what_would_be_done_and_does_nothing(desk: Desk) -> None:
    done = desk.maintain("--dry-run")
    assert done.status == 0, done.stderr
    for node in by_name(done).values():
        assert (node["step"], node["updates"]) == ("due", {TOOL: "1.1"}), "1.5 is no security update"
        assert node["waiting"] == {KERNEL: "a kernel: not taken yet", HELD: "on hold"}
        assert node["freeable"] >= 150 << 20
        assert node["needs"][2].startswith("reboot: /run/reboot-required")
    assert desk.versions("box-0") == {TOOL: "1.0", KERNEL: "1.0", HELD: "1.0"}
    assert desk.hooks() == []


def test_a_package_that_breaks_stays_with_the_canary(desk: Desk) -> None:
    desk.security("1.2", postinst="#!/bin/sh\nexit 1\n")
    done = desk.maintain("--now")
    assert done.status == 1, done.stderr
    nodes = by_name(done)
    assert nodes["box-0"]["step"] == "failed" and TOOL in nodes["box-0"]["reason"]
    assert nodes["box-1"]["step"] == "missed"
    assert desk.versions("box-1")[TOOL] == "1.0"
    assert desk.hooks() == ["drain box-0 maintain"]
    quarantine = desk.status()["box-0"]["quarantine"]
    assert quarantine["owner"] == "gpuprov" and "gpuprov maintain" in quarantine["reason"]
    dry_run = desk.maintain("--now", "--dry-run")
    assert by_name(dry_run)["box-0"]["step"] == "left"

    desk.security("1.0")  # the archive takes it back; a person removes what is half installed
    desk.on("box-0", f"sudo apt-get -q update && sudo dpkg --remove {TOOL} && sudo apt-get -q -y install {TOOL}=1.0")
    well = desk.cluster.verify()
    assert well.status == 0, wrongs(well)
    assert desk.hooks() == ["resume box-0 release"]


def test_killed_in_the_middle_it_goes_on_and_ends(desk: Desk) -> None:
    desk.security("1.1", postinst=SLOW)
    process = desk.cluster.start("maintain", desk.cluster.file, "--sandbox", "--yes", "--now")
    waiting = ["podman", "exec", desk.cluster.container("box-0"), "test", "-e", "/var/lib/waiting"]
    assert until(
        lambda: process.poll() is not None or not subprocess.run(waiting, check=False, timeout=60).returncode, 600
    )
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    half = desk.status()
    assert half["box-0"]["quarantine"]["owner"] == "gpuprov"
    assert half["box-1"]["quarantine"] is None
    desk.everywhere("sudo touch /var/lib/go")
    done = desk.maintain("--now")
    assert done.status == 0, (done.stdout, done.stderr)
    nodes = by_name(done)
    assert {node["step"] for node in nodes.values()} == {"done"}
    assert desk.hooks() == [
        "drain box-0 maintain", "resume box-0 maintain", "drain box-1 maintain", "resume box-1 maintain",
    ]  # fmt: skip
    for name, node in nodes.items():
        assert desk.versions(name) == {TOOL: "1.1", KERNEL: "1.0", HELD: "1.0"}
        if name == "box-1":  # what the killed run had begun on box-0 ended there, the clean-up too
            assert node["freed"] >= 150 << 20
        assert node["rebooted"].startswith("/run/reboot-required")
        assert desk.on(name, "ls /var/crash") == "new\n"
        images = desk.on(name, "sudo docker image ls --format '{{.Repository}}'").split()
        assert "stale" not in images and images, "images of the lock stay"


def test_status_has_what_was_done_and_what_waits(desk: Desk) -> None:
    for name, node in desk.status().items():
        row = node["maintained"]
        assert row["waiting"] == {KERNEL: "a kernel: not taken yet", HELD: "on hold"}
        assert row["packages"] == {TOOL: "1.1"}, name
        assert node["drift"] == [] and node["quarantine"] is None
    record = json.loads((desk.cluster.root / "maintenance.json").read_text())
    assert record["sets"] == {"box": {TOOL: "1.1"}}


def test_a_second_time_there_is_nothing_to_do(desk: Desk) -> None:
    done = desk.maintain("--now")
    assert (done.status, done.json["message"]) == (0, "no node needs maintenance")
    assert desk.hooks() == []
