"""The batch script of a job: what Slurm is asked for, and the program that it carries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.lifecycle.jobs import slurm_submit

JOB: dict[str, Any] = {"id": "ddp-1a2b3c", "gpus": 8, "environment": {"TEXT": 'it\'s "$HOME" \\ `date` é\u2028'}}


def script(tmp_path: Path, content: bytes = b"folder", **changes: Any) -> str:
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    arguments: dict[str, Any] = {"group": "train", "count": 2, "names": (), **changes}
    return slurm_submit.batch_script(JOB, archive=archive, **arguments)


def test_it_asks_for_whole_nodes_with_their_gpus(tmp_path: Path) -> None:
    text = script(tmp_path)
    lines = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
    expected = {"--job-name=ddp-1a2b3c", "--partition=train", "--nodes=2", "--exclusive", "--mem=0", "--gres=gpu:8"}
    assert expected <= lines
    assert "#SBATCH --nodelist=train-3,train-5\n" in script(tmp_path, names=("train-3", "train-5"))


def test_each_node_gets_the_program_and_its_own_name(tmp_path: Path) -> None:
    """bash runs the script with stand-ins for Slurm and sudo; the program is compiled, and not run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_ins = {
        "scontrol": "printf 'train-3\\ntrain-5\\n'",
        "srun": 'while [ "$1" != sh ]; do shift; done; SLURMD_NODENAME=train-5 exec "$@"',
        "sudo": f'echo "$*" >{tmp_path}/arguments; cat >{tmp_path}/program.py',
    }
    for name, text in stand_ins.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (tmp_path / "script").write_text(script(tmp_path))
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "train-[3,5]"}
    subprocess.run(["bash", str(tmp_path / "script")], env=environment, check=True, timeout=60)
    arguments = (tmp_path / "arguments").read_text()
    assert "GPUPROV_TASK_NODES=train-3 train-5  GPUPROV_TASK_NODE=train-5 /usr/bin/python3 -I -" in arguments
    program = (tmp_path / "program.py").read_text()
    assert "provisioner.lifecycle" not in program.partition("sys.exit(run(")[0]
    show = program.replace("sys.exit(run(", "print((")
    text = show.replace("print((json.loads", "print(repr(json.loads")
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert repr(JOB["environment"]["TEXT"]) in done.stdout


def test_a_folder_that_slurm_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="Slurm takes scripts of 4 MiB"):
        script(tmp_path, b"x" * (4 << 20))
