"""`ssh`, `exec`, `cp`, `ssh-config`: which words are gpuprov's, and what the real tools are told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh_config, ssh_keys
from tests.support import warm
from tests.support.sandbox_cluster import ROOT

FILE = """
name: lab
sites: {here: {provider: aws, region: us-east-1, jump: ops@bastion}}
groups: {train: {machine: p4d.24xlarge, count: 2}, infer: {machine: g6.xlarge}}
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJv1lrYfqDqGNF3Tq8Xl5Y8UO2VwR5X6tV1n5y3mB1aC"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = open_cluster(path, sandbox=False)
    private_dir(cluster.paths.root)
    nodes = [
        Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7"),
        Node("train-1", "train", "here", "p4d.24xlarge", "i-1", "", "203.0.113.8", "10.0.0.8"),
        Node("infer-0", "infer", "here", "g6.xlarge", "i-2", "", "203.0.113.9", "10.0.0.9"),
    ]
    fleet.save(cluster.paths, nodes)
    ssh_keys.ensure_key(cluster.paths, None)
    pins = {node.name: (node.id, KEY) for node in nodes}
    ssh_config.save(
        cluster.paths,
        nodes,
        pins,
        dict.fromkeys(pins, "ubuntu"),
        {"infer-0": ssh_config.jump("ops@bastion", nodes[2].address)},
    )
    return path


def called(file: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Exit status, the tool and its arguments, a line each, and standard error."""
    tools = file.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("ssh", "scp"):
        (tools / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        (tools / name).chmod(0o755)
    path = {"PYTHONPATH": str(ROOT), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = warm.run("provisioner", *arguments, cwd=file.parent, env={**os.environ, **path})
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_stands_behind_the_command_is_its_own(file: Path) -> None:
    code, argv, _ = called(file, "ssh", str(file), "train-0", "df", "-h", "--json")
    assert (code, argv[0], argv[-4:]) == (0, "ssh", ["train-0", "df", "-h", "--json"])
    code, argv, _ = called(file, "ssh", str(file), "train-0", "--", "nvidia-smi", "-L")
    assert argv[-3:] == ["train-0", "nvidia-smi", "-L"]
    assert called(file, "ssh", str(file), "train-0")[1][-2:] == ["-t", "train-0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["exec", "FILE", "--groups", "train", "hostname"], "no option --groups: there are --group, --help, "),
        (["exec", "FILE", "-v", "hostname"], "no option -v"),
        (["exec", "FILE", "--", "-v"], "a command cannot begin with -v"),
        (["ssh", "FILE", "train-0", "-L", "8080:localhost:80"], "no option -L"),
        (["exec", "FILE", "--group", "batch", "true"], "there is no node of group batch"),
        (["exec", "FILE", "--node", "train-7", "true"], "there is no node train-7"),
        (["cp", "FILE", "a", "b"], "exactly one of a and b has to be on a node"),
        (["cp", "FILE", "train-0:a", "train-1:b"], "exactly one of train-0:a and train-1:b has to be on a node"),
        (["cp", "FILE", "a", "train-9:b"], "there is no node train-9"),
    ],
)
def test_what_is_none_of_gpuprovs_is_refused(
    arguments: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(file) if argument == "FILE" else argument for argument in arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("selection", "nodes"),
    [
        ([], {"train-0", "train-1", "infer-0"}),
        (["--group", "train"], {"train-0", "train-1"}),
        (["--group", "infer", "--node", "train-1"], {"infer-0", "train-1"}),
    ],
)
def test_nodes_by_group_and_name_before_or_after_the_file(selection: list[str], nodes: set[str], file: Path) -> None:
    for arguments in ([*selection, str(file)], [str(file), *selection]):
        code, lines, _ = called(file, "exec", *arguments, "hostname")
        assert code == 0
        assert {line.partition(":")[0] for line in lines} == nodes


def test_a_copy_goes_by_scp_and_the_pinned_keys(file: Path) -> None:
    config = str(open_cluster(file, sandbox=False).paths.ssh / "config")
    code, argv, _ = called(file, "cp", str(file), "-r", "./data:v1", "train-0:/tmp/data")
    assert (code, argv[:4]) == (0, ["scp", "-q", "-F", config])
    assert argv[-4:] == ["-r", "--", "./data:v1", "train-0:/tmp/data"]
    assert called(file, "cp", str(file), "infer-0:/var/log/syslog", ".")[1][-2:] == ["infer-0:/var/log/syslog", "./."]


def test_a_configuration_for_a_users_own_ssh(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ssh-config", str(file)]) == 0
    config_file = file.parent / "config"
    config_file.write_text(capsys.readouterr().out + "\nHost other\n  User me\n")
    paths = open_cluster(file, sandbox=False).paths

    def options_of(host: str) -> dict[str, str]:
        done = subprocess.run(["ssh", "-G", "-F", str(config_file), host], capture_output=True, text=True, check=True)
        return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)

    train = options_of("lab-train-1")
    assert (train["hostname"], train["user"], train["hostkeyalias"]) == ("203.0.113.8", "ubuntu", "train-1.lab")
    assert (train["stricthostkeychecking"], train["userknownhostsfile"]) == ("true", str(paths.known_hosts))
    assert train["identityfile"] == str(ssh_keys.identity(paths))
    assert "controlpath" not in train
    assert "ops@bastion" in options_of("lab-infer-0")["proxycommand"]
    other = options_of("other")  # nothing of it is for other hosts
    assert (other["user"], other["stricthostkeychecking"]) == ("me", "ask")
