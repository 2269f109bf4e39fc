"""What containers are told of a node's network: each kind of node, with the folders that AWS's packages really make."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.role_script import load

IMAGE = {"reference": "nvcr.io/nvidia/pytorch:25.10-py3", "pull": "nvcr.io/nvidia/pytorch@sha256:" + "1" * 64}
OWN = "/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
"""LD_LIBRARY_PATH of NGC's images (NVIDIA-NeMo/RL#1973)."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = load("pytorch_images", "library/container_options.py")
    for name, path in (("EFA", "opt/amazon/efa"), ("OFI_NCCL", "opt/amazon/ofi-nccl"), ("VERBS", "dev/infiniband"),
                       ("CONF", "nccl.conf")):  # fmt: skip
        monkeypatch.setattr(loaded, name, str(tmp_path / path))
    environment = subprocess.CompletedProcess([], 0, json.dumps([f"LD_LIBRARY_PATH={OWN}", "NCCL_NET_PLUGIN=spcx"]), "")
    monkeypatch.setattr(loaded.subprocess, "run", lambda *_, **__: environment)
    monkeypatch.setattr(loaded, "unlimited", lambda: True)
    return loaded


def docker_arguments(module: ModuleType, efa: bool, vendor: str = "nvidia") -> list[str]:
    (options,) = module.options([IMAGE], vendor, efa)
    assert {name: options[name] for name in IMAGE} == IMAGE
    return list(options["docker_run"])


@pytest.mark.parametrize("folder", ["lib/x86_64-linux-gnu", "lib", "lib64"])
def test_nccl_finds_the_nodes_efa_plugin_in_any_image(module: ModuleType, tmp_path: Path, folder: str) -> None:
    """Where awsome-distributed-ai#935 (Ubuntu) and NeMo-RL#2585 saw it; an image's own plugin is overruled."""
    efa, ofi = tmp_path / "opt/amazon/efa", tmp_path / "opt/amazon/ofi-nccl"
    for path in (efa / "lib", ofi / folder, tmp_path / "dev/infiniband"):
        path.mkdir(parents=True)
    for name in ("libnccl-net-ofi.so", "libnccl-net.so", "libnccl-ofi-tuner.so"):
        (ofi / folder / name).touch()
    (tmp_path / "dev/infiniband/uverbs0").touch()
    (tmp_path / "nccl.conf").touch()
    assert docker_arguments(module, efa=True) == [
        "--gpus=all",
        "--network=host",
        "--ipc=host",
        f"--device={tmp_path}/dev/infiniband",
        "--ulimit=memlock=-1",
        f"--volume={tmp_path}/nccl.conf:{tmp_path}/nccl.conf:ro",
        f"--volume={efa}:{efa}:ro",
        f"--volume={ofi}:{ofi}:ro",
        f"--env=NCCL_NET_PLUGIN={ofi}/{folder}/libnccl-net.so",
        f"--env=LD_LIBRARY_PATH={OWN}:{ofi}/{folder}:{efa}/lib",
    ]
    assert not any("opt/amazon" in argument for argument in docker_arguments(module, efa=False))


def test_a_node_without_rdma_adds_next_to_nothing(module: ModuleType) -> None:
    assert docker_arguments(module, efa=False) == ["--gpus=all", "--network=host", "--ipc=host", "--ulimit=memlock=-1"]
    assert docker_arguments(module, efa=True) == docker_arguments(module, efa=False)
    assert docker_arguments(module, efa=False, vendor="amd")[:2] == ["--device=/dev/kfd", "--device=/dev/dri"]


def test_files_that_nccls_settings_name_are_mounted_and_gloo_gets_their_interface(
    module: ModuleType, tmp_path: Path
) -> None:
    """Azure's image: topology and graph; the first line of a name counts, a file that is not there is left out."""
    topology, graph = tmp_path / "topo.xml", tmp_path / "graph.xml"
    for file in (topology, graph):
        file.write_text("<system/>")
    lines = ["# NCCL_TOPO_FILE=/commented", "NCCL_SOCKET_IFNAME==eth7", f"NCCL_TOPO_FILE={topology}"]
    lines += [f"NCCL_TOPO_FILE={tmp_path}/other.xml", f"NCCL_GRAPH_FILE={graph}", "NCCL_DEBUG_FILE=relative"]
    (tmp_path / "nccl.conf").write_text("\n".join([*lines, "NCCL_GRAPH_DUMP_FILE=/not/there"]))
    arguments = docker_arguments(module, efa=False)
    mounts = [argument for argument in arguments if argument.startswith("--volume=")]
    assert mounts == [f"--volume={path}:{path}:ro" for path in (tmp_path / "nccl.conf", graph, topology)]
    assert "--env=GLOO_SOCKET_IFNAME=eth7" in arguments


def test_a_word_is_one_word(module: ModuleType, tmp_path: Path) -> None:
    """The file is for $(cat …): nothing in it may hold a space."""
    (tmp_path / "opt/amazon/ofi-nccl/lib").mkdir(parents=True)
    (tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so").touch()
    arguments = docker_arguments(module, efa=True)
    assert any(argument.endswith("libnccl-net-ofi.so") for argument in arguments)
    assert not any(" " in argument for argument in arguments)
