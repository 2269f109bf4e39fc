"""The probe and its collection, against tools that lie, hang, flood and do not die."""

from __future__ import annotations

import gc
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.events import Event, Events
from provisioner.spec.groups import GpuOptions, Group
from provisioner.verify.collect import collect
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import read
from provisioner.verify.probe import images as probe_images
from provisioner.verify.probe import job as probe_job
from provisioner.verify.probe import node, runner
from provisioner.verify.request import ProbeRequest, load_request, request_for
from tests.support.healthy_bundle import expected

LOCAL = ("sh", "-c")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of the probe's PATH but for the shell's own tools; jobs run image r@sha256:2 there."""
    monkeypatch.setattr(runner, "PATH", f"{tmp_path}:/usr/bin:/bin")
    arguments = ["--gpus=all", "--network=host"]
    (tmp_path / "images.json").write_text(json.dumps([{"pull": "r@sha256:2", "docker_run": arguments}]))
    monkeypatch.setattr(probe_job, "IMAGES", str(tmp_path / "images.json"))
    return tmp_path


def tool(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def request_document(files: dict[str, float], deadline: float) -> dict[str, Any]:
    return ProbeRequest(files).to_json() | {"deadline": deadline}


def test_a_command_and_how_it_ended(tools: Path) -> None:
    tool(tools, "ibstat", "echo out; echo complaint >&2; exit 3")
    output = runner.run(["ibstat"], 5)
    assert (output["text"], output["rc"], output["error"]) == ("out\n", 3, "complaint")
    assert runner.run(["ibstat"], 5, merge=True)["text"] == "out\ncomplaint\n"
    assert runner.run(["no-such-tool"], 5)["missing"]


def test_a_hung_command_is_killed_with_its_children(tools: Path) -> None:
    tool(tools, "nvidia-smi", f"echo begun; (sleep 60; echo late > {tools}/late) & sleep 60")
    output = runner.run(["nvidia-smi"], 0.3)
    assert (output["timed_out"], output["rc"], output["text"]) == (True, None, "begun\n")
    assert output["seconds"] < 10


def test_a_command_that_closes_its_output_and_hangs(tools: Path) -> None:
    tool(tools, "nvidia-smi", "exec >&- 2>&-; sleep 60")
    assert runner.run(["nvidia-smi"], 0.3)["timed_out"]


def test_a_daemon_that_keeps_the_pipe_holds_nobody_up(tools: Path) -> None:
    tool(tools, "ibstat", "(sleep 5) & echo done")
    output = runner.run(["ibstat"], 30)
    assert (output["text"], output["rc"]) == ("done\n", 0)
    assert output["seconds"] < 5


def test_a_flood_is_cut_and_said(tools: Path) -> None:
    tool(tools, "ibstat", "head -c 300000 /dev/zero")
    output = runner.run(["ibstat"], 20, limit=100_000)
    assert output["truncated"]
    assert len(output["text"]) < 300_000
    tool(tools, "dmesg", 'echo "NVRM: Xid (PCI:0000:10:1c): 79, x"; yes "[1.0] noise and more noise" | head -n 200000')
    log = node.kernel_log(20)
    assert not log["truncated"]
    assert len(log["text"]) < 2 * runner.KEEP
    assert "79" in log["text"].split("\n")[0]


def test_all_commands_run_at_once_and_one_that_hangs_costs_itself(tools: Path) -> None:
    tool(tools, "ibstat", "echo fine")
    tool(tools, "nvidia-smi", 'case "$*" in *topo*) echo topo;; *) sleep 60;; esac')
    document = runner.probe(request_document({"nvidia-smi.xml": 0.5, "topo.txt": 5, "ibstat.txt": 5}, deadline=20))
    assert document["files"]["nvidia-smi.xml"]["timed_out"]
    assert document["files"]["topo.txt"]["text"] == "topo\n"
    assert document["files"]["ibstat.txt"]["text"] == "fine\n"
    assert document["seconds"] < 10


def test_the_whole_probe_is_bounded(tools: Path) -> None:
    tool(tools, "ibstat", "sleep 60")
    document = runner.probe(request_document({"ibstat.txt": 30, "kernel.txt": 5}, deadline=0.5))
    assert document["files"]["ibstat.txt"]["timed_out"]
    assert document["files"]["kernel.txt"]["rc"] == 0


def test_a_name_that_nobody_knows_costs_itself(tools: Path) -> None:
    document = runner.probe(
        {**request_document({"kernel.txt": 5}, deadline=5), "files": {"strange.txt": 1, "kernel.txt": 5}}
    )
    assert "KeyError" in document["files"]["strange.txt"]["error"]
    assert document["files"]["kernel.txt"]["rc"] == 0


@pytest.fixture
def exporter() -> Iterator[http.server.ThreadingHTTPServer]:
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 31\n')

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_exporter_is_really_scraped(exporter: http.server.ThreadingHTTPServer) -> None:
    output = node.exporter(exporter.server_address[1], 5)
    assert (output["rc"], output["text"].split("{")[0]) == (0, "DCGM_FI_DEV_GPU_TEMP")


def test_an_exporter_is_asked_where_it_listens() -> None:
    """On the private address alone, where gpuprov has it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.7", 0), http.server.SimpleHTTPRequestHandler)
    try:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert node.exporter(server.server_address[1], 5)["error"] == "HTTP 404"
    finally:
        server.shutdown()
        server.server_close()


def test_a_dead_and_a_silent_exporter() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert node.exporter(port, 2)["rc"] == 7
        listener.listen()
        assert node.exporter(port, 0.3)["rc"] == 28


DOCKER = """
case "$1 $2" in
  "image inspect")
    echo '{"Id":"sha256:1","RepoTags":["r:1"],"RepoDigests":["r@sha256:2"]}'; echo "No such image: x" >&2; exit 1;;
  "run --rm") echo banner; echo '{"torch": "2.9.0", "python": "3.12.3", "gpus": 8}';;
esac
"""


def test_images_and_frameworks(tools: Path) -> None:
    tool(tools, "docker", DOCKER)
    images = [{"reference": "r:1", "pull": "r@sha256:2"}]
    files = {"container-images.json": 5.0, "framework.json": 5.0}
    document = runner.probe({"deadline": 20, "files": files, "images": images})
    from provisioner.verify.bundle import Bundle

    facts = read(Bundle.from_json(document))
    assert facts.images is not None
    assert facts.images[0].digests == ("sha256:2",)
    assert facts.frameworks is not None
    assert (facts.frameworks[0].reference, facts.frameworks[0].torch, facts.frameworks[0].gpus) == ("r:1", "2.9.0", 8)


def test_no_image_at_all_is_an_answer_and_no_docker_is_none(tools: Path) -> None:
    tool(tools, "docker", "echo 'Error response from daemon: No such image: r:1' >&2; exit 1")
    assert probe_images.images([{"reference": "r:1"}], 5)["text"] == "[]"
    tool(tools, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    assert probe_images.images([{"reference": "r:1"}], 5)["text"] == ""
    (tools / "docker").unlink()
    assert not Path("/usr/bin/docker").exists() or probe_images.framework([], 1)["text"]


def test_a_container_that_hangs_is_removed(tools: Path) -> None:
    tool(tools, "docker", f'echo "$*" >> {tools}/calls; case "$1" in run) sleep 60;; esac')
    document = json.loads(probe_images.framework([{"reference": "r:1", "pull": "r@sha256:2"}], 0.3)["text"])
    assert document["images"][0]["timed_out"]
    calls = (tools / "calls").read_text().splitlines()
    name = calls[0].split("--name ")[1].split()[0]
    assert f"rm --force {name}" in calls
    assert "--gpus=all --network=none" in calls[0] and "--network=host" not in calls[0]
    assert "--pull=never" in calls[0]


def test_no_image_runs_where_no_role_wrote_how_jobs_run(tools: Path) -> None:
    tool(tools, "docker", f'echo "$*" >> {tools}/calls')
    document = json.loads(probe_images.framework([{"reference": "x:1", "pull": "x@sha256:3"}], 5)["text"])
    assert "has no docker_run of x@sha256:3: `gpuprov up` writes" in document["images"][0]["error"]
    assert not (tools / "calls").exists()


def test_a_node_that_hangs_up_leaves_no_word_on_standard_error(caplog: pytest.LogCaptureFixture) -> None:
    """Python 3.11.2 tells of the broken pipe when the connection is forgotten."""
    bundles = collect({"a": ("sh", "-c", "exit 255 #")}, ProbeRequest({"kernel.txt": 5}))
    gc.collect()
    assert "exit status 255" in bundles["a"].error
    assert caplog.records == []


def test_nodes_are_collected_at_once_and_half_dead_ones_say_so() -> None:
    events: list[Event] = []
    targets = {
        "good": LOCAL,
        "banner": ("sh", "-c", 'echo "Welcome"; exec sh -c "$0"'),
        "hung": ("sh", "-c", "exec sleep 60 #"),
        "refused": ("sh", "-c", "echo 'Connection refused' >&2; exit 255 #"),
        "nonsense": ("sh", "-c", "cat > /dev/null; echo '@gpuprov-probe-1 AAAA' #"),
        "silent": ("sh", "-c", "exit 0 #"),
        "nothing": ("/no/such/program",),
        "killed before": ("ssh", "-F", "/no/such/configuration", "node"),
    }
    bundles = collect(targets, ProbeRequest({"kernel.txt": 5}), deadline_s=8, events=Events(events.append))
    assert {name for name, bundle in bundles.items() if not bundle.error} == {"good", "banner"}
    assert bundles["good"].files["kernel.txt"].text == bundles["banner"].files["kernel.txt"].text != ""
    assert bundles["good"].collected is not None
    assert "no answer within 8 s" in bundles["hung"].error
    assert "Connection refused" in bundles["refused"].error
    assert "invalid answer from the probe" in bundles["nonsense"].error
    assert "No such file" in bundles["nothing"].error
    assert "no run has reached it yet, and `gpuprov up` goes on" in bundles["killed before"].error
    assert sorted(event.node or "" for event in events) == sorted(targets)
    assert events[-1].done == len(targets)


def test_a_request_cannot_leave_its_string() -> None:
    image = {"reference": "'\"\\\n$(touch /)`\u2028", "pull": "x"}
    bundle = collect({"a": LOCAL}, ProbeRequest({"kernel.txt": 5}, images=(image,)), deadline_s=20)["a"]
    assert not bundle.error


def test_what_is_asked_of_a_machine() -> None:
    p4d = request_for(expected("p4d.24xlarge"))
    assert {"fi_info.txt", "fabricmanager.txt", "nvidia-smi.xml"} <= set(p4d.files)
    started = {"framework.json", "dcgmi-diag.json", "load.json"}
    assert {"ibstat.txt", "rocm-smi.json", *started}.isdisjoint(p4d.files)
    assert p4d.images[0]["pull"].startswith("nvcr.io/nvidia/pytorch@sha256:")
    amd = request_for(expected("amd-mi300x-node"))
    assert "rocm-smi.json" in amd.files
    assert "nvidia-smi.xml" not in amd.files
    assert load_request(expected("p4d.24xlarge", "quick")) is None
    standard, stress = (load_request(expected("p4d.24xlarge", level)) for level in ("standard", "stress"))
    assert standard is not None and stress is not None
    assert list(standard.files) == ["reach.json", "framework.json", "dcgmi-diag.json", "load.json"]
    assert (standard.diag, stress.diag) == (1, 3)
    assert standard.deadline > sum(standard.files.values())
    assert stress.to_json()["load"]["options"]["seconds"] > standard.to_json()["load"]["options"]["seconds"]
    cut = load_request(expected("p4d.24xlarge", group=Group(machine="p4d.24xlarge", gpu=GpuOptions(mig="1g.5gb"))))
    assert cut is not None and "load.json" not in cut.files  # a program sees one instance of a GPU that is cut up
    assert p4d.deadline > max(p4d.files.values())
    assert {"dmesg.txt", "host.json", "packages.txt", "stamp.json", "rdma.json"} <= set(p4d.files)


def test_expectations_survive_json() -> None:
    for machine in ("p4d.24xlarge", "Standard_ND96asr_v4", "amd-mi300x-node"):
        original = expected(machine)
        restored = Expected.from_json(json.loads(json.dumps(original.to_json())))
        assert json.dumps(restored.to_json()) == json.dumps(original.to_json())


def test_holds_are_those_of_apt_mark(tools: Path) -> None:
    tool(tools, "dpkg-query", r"printf 'install adduser\nhold libnccl2\nhold libc6:amd64\ndeinstall old\n'")
    assert node.holds(5)["text"] == "libnccl2\nlibc6:amd64\n"
    tool(tools, "dpkg-query", "echo 'hold half'; exit 2")
    assert node.holds(5)["rc"] == 2
