"""The probe's part that loads a node: docker and nvidia-smi are small scripts here, all else is what runs on a node."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.bundle import Bundle
from provisioner.verify.facts import Facts, read
from provisioner.verify.probe import host_network as _network  # noqa: F401 (registers interfaces-after.json)
from provisioner.verify.probe import job as probe_job
from provisioner.verify.probe import load as probe_load
from provisioner.verify.probe import node as _node  # noqa: F401 (registers dmesg-after.txt and rdma-after.json)
from provisioner.verify.probe import runner
from provisioner.verify.request import load_request
from tests.support.healthy_bundle import PULL, expected
from tests.support.healthy_load import result

DOCKER = """#!/bin/sh
echo "$*" >> calls
[ "$1" = run ] || exit 0
while [ "$1" != -c ]; do shift; done
exec sh -c "$2"
"""
SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) cat apps 2>/dev/null; exit 0;;
  *) echo "<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>";;
esac
"""
JOB = ["--gpus=all", "--network=host", "--ipc=host", "--volume=/etc/topo.xml:/etc/topo.xml:ro"]
Ask = Callable[..., Facts]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs that stands before all others in PATH, and the environment of a job."""
    (tmp_path / "images.json").write_text(json.dumps([{"pull": PULL, "docker_run": JOB}]))
    monkeypatch.setattr(probe_job, "IMAGES", str(tmp_path / "images.json"))
    path = f"{tmp_path}:/usr/bin:/bin"
    monkeypatch.setattr(runner, "PATH", path)
    monkeypatch.setattr(probe_load, "PATH", path)
    program(tmp_path, "docker", DOCKER.replace("calls", str(tmp_path / "calls")))
    program(tmp_path, "nvidia-smi", SMI.replace("apps 2", f"{tmp_path}/apps 2"))
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def torchrun(folder: Path, *lines: str, then: str = "") -> None:
    commands = "\n".join(f"echo '{probe_load.LOAD_MARK}{line}'" for line in lines)
    program(
        folder,
        "torchrun",
        f'#!/bin/sh\necho "$*" > {folder}/given\nhead -c 20 "$4" >> {folder}/given\n{commands}\n{then}\n',
    )


def probed_bundle(deadline: float = 20.0, **load: Any) -> Bundle:
    """load.json and the files beside it."""
    request = load_request(expected("p4d.24xlarge"))
    assert request is not None
    document = request.to_json()
    document["load"] |= {"settle": 0.05, **load}
    return Bundle.from_json(runner.probe({**document, "files": {"load.json": deadline}, "deadline": deadline + 5}))


def ask(deadline: float = 20.0, **load: Any) -> Facts:
    return read(probed_bundle(deadline, **load))


def healthy_result() -> str:
    from provisioner.catalog import load

    return "result " + json.dumps(result(load().machine("p4d.24xlarge")))


def test_the_program_runs_in_the_locked_image_and_its_result_comes_back(node: Path) -> None:
    torchrun(node, "phase copies", "phase compute", healthy_result(), then="echo noise; echo trouble >&2")
    facts = ask()
    assert facts.load is not None
    assert (facts.load.state, facts.load.finished, facts.load.rc, len(facts.load.gpus)) == ("ran", True, 0, 8)
    assert facts.load.error == "trouble"
    call = (node / "calls").read_text()
    assert f" {PULL} " in call
    # A job's environment, but for the network.
    assert "--gpus=all --ipc=host --volume=/etc/topo.xml:/etc/topo.xml:ro --network=none" in call
    assert "--pull=never" in call and "--env NCCL_NET=Socket" in call and "--network=host" not in call
    assert "--nproc-per-node gpu" in (node / "given").read_text()


def test_nothing_runs_where_no_role_wrote_how_jobs_run(node: Path) -> None:
    (node / "images.json").unlink()
    load = ask().load
    assert load is not None
    assert (load.state, "`gpuprov up` writes the environment of a job" in load.why) == ("absent", True)
    assert not (node / "calls").exists()


def test_the_node_is_looked_at_meanwhile_and_afterwards(node: Path) -> None:
    torchrun(node, "phase compute", then="sleep 1")
    facts = ask()
    assert facts.under_load is not None
    assert facts.after is not None and facts.after.smi is not None
    assert facts.source("dmesg-after.txt").state != "absent"


SAMPLING = """#!/bin/sh
case "$*" in
  *compute-apps*) exit 0;;
  *query-gpu*) echo x >> FOLDER/asked; n=$(wc -l < FOLDER/asked); [ $n = 2 ] && exit 15
    echo "index, temperature.gpu, clocks.current.sm [MHz]"; echo "0, $((40 + n)), $((1400 + n)) MHz";;
  *) echo "<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>";;
esac
"""


def test_the_gpus_are_asked_again_and_again_until_the_load_ends(node: Path) -> None:
    program(node, "nvidia-smi", SAMPLING.replace("FOLDER", str(node)))
    torchrun(node, "phase compute", then="sleep 2")
    facts = ask(every=0.1)
    asked_times = len((node / "asked").read_text().splitlines())
    assert asked_times > 3 and facts.samples is not None
    (gpu,) = facts.samples
    assert gpu.count == asked_times - 1  # one gave no answer
    assert (gpu.temperature, gpu.clock_sm_mhz, gpu.memory_temperature) == (40 + asked_times, 1401, None)


def test_gpus_that_never_answer_under_load_say_why(node: Path) -> None:
    program(
        node, "nvidia-smi", SMI.replace("*) echo", "*query-gpu*) exit 15;; *) echo").replace("apps 2", f"{node}/apps 2")
    )
    torchrun(node, "phase compute", then="sleep 1")
    facts = ask(every=0.1)
    assert facts.samples is None and facts.source("nvidia-smi-samples.csv").state == "unreadable"


def test_a_job_on_the_gpus_is_left_alone(node: Path) -> None:
    torchrun(node, healthy_result())
    (node / "apps").write_text("4711, python3 train.py\n4712, /opt/x\n")
    facts = ask()
    assert facts.load is not None
    assert facts.load.state == "busy"
    assert facts.load.busy == ("python3 train.py (pid 4711)", "/opt/x (pid 4712)")
    assert not (node / "calls").exists()


def test_whose_a_process_is_comes_with_it(node: Path) -> None:
    (node / "apps").write_text(f"{os.getpid()}, python3\n99999999, gone\n")
    own_process, ended_process = probe_load.busy("nvidia") or []
    assert own_process["cgroup"] == Path("/proc/self/cgroup").read_text().strip()
    assert own_process["parent"] == os.getppid()
    assert ended_process == {"pid": 99999999, "name": "gone"}


def test_without_an_answer_about_jobs_nothing_is_started(node: Path) -> None:
    torchrun(node, healthy_result())
    program(node, "nvidia-smi", "#!/bin/sh\nexit 9\n")
    facts = ask()
    assert facts.load is not None and facts.load.state == "absent"
    assert not (node / "calls").exists()


def test_a_program_that_hangs_is_killed_with_its_container(node: Path) -> None:
    torchrun(node, "phase copies", "phase all_reduce", then="exec sleep 600")
    facts = ask(deadline=1.0)
    assert facts.load is not None
    assert (facts.load.timed_out, facts.load.phase, facts.load.finished) == (True, "all_reduce", False)
    assert f"rm --force gpuprov-load-{os.getpid()}" in (node / "calls").read_text()


def test_a_program_that_dies_says_why(node: Path) -> None:
    torchrun(node, "phase copies", then="echo 'RuntimeError: CUDA error: no' >&2; echo tail >&2; exit 3")
    facts = ask()
    assert facts.load is not None
    assert (facts.load.rc, facts.load.error) == (3, "RuntimeError: CUDA error: no")


@pytest.mark.parametrize("python", ["", "#!/bin/sh\nexit 1\n"])
def test_a_node_without_pytorch_says_so(node: Path, python: str) -> None:
    if python:
        program(node, "python3", python)
    else:
        probe_load.PATH = runner.PATH = str(node)  # nothing but what is in the folder
    facts = ask(image=None)
    assert facts.load is not None
    assert facts.load.state == "absent"
    assert "PyTorch" in facts.load.why


@pytest.mark.parametrize("venv", ["", "venv/bin/"])
def test_the_nodes_own_pytorch_is_taken_and_nothing_is_written(node: Path, venv: str) -> None:
    text = f"""#!/bin/sh
[ "$1" = -c ] && echo 2.9.0 && exit 0
echo "$*" > {node}/given
echo '{probe_load.LOAD_MARK}{healthy_result()}'
"""
    (node / venv).mkdir(parents=True, exist_ok=True)
    program(node / venv, "python3", text)
    python = f"{node}/{venv}python3" if venv else "python3"
    facts = ask(image=None, **({"python": python} if venv else {}))
    assert facts.load is not None and facts.load.finished
    assert facts.load.launcher == f"{python} of the node, PyTorch 2.9.0"
    arguments = (node / "given").read_text()
    assert f"/proc/{os.getpid()}/fd/" in arguments and "--seconds 5" in arguments


def test_what_a_program_prints_is_bounded(node: Path) -> None:
    torchrun(node, *["phase x"] * 300, then="yes trouble | head -n 100000 >&2; yes noise | head -n 100000")
    answer = probed_bundle()
    assert len(answer.files["load.json"].text) < 20_000
    facts = read(answer)
    assert facts.load is not None and facts.load.phase == "x"


def test_a_job_of_slurm_has_the_gpus_before_a_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts up, or loads data: the node is given to it."""
    lines = {
        "71": b"slurmstepd: [17.batch]\0", "72": b"/usr/sbin/slurmstepd\0infinity\0", "73": b"/usr/sbin/slurmd\0-D\0",
        "74": b"python3\0train.py\0", "self": b"slurmstepd: [9.0]\0",
    }  # fmt: skip
    for pid, text in lines.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(text)
    assert [step["pid"] for step in probe_load.job_steps(str(tmp_path))] == [71]
    monkeypatch.setattr(probe_load, "busy", lambda _: [])
    monkeypatch.setattr(probe_load, "job_steps", lambda: [{"pid": 71, "name": "slurmstepd"}])
    assert probe_load.occupied("nvidia") == [{"pid": 71, "name": "slurmstepd"}]
    monkeypatch.setattr(probe_load, "busy", lambda _: None)
    assert probe_load.occupied("nvidia") is None  # nobody says, whatever Slurm has
