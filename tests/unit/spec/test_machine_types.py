"""`machines:` of cluster.yaml and of a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner import catalog, spec
from provisioner.cli.main import run
from provisioner.common.errors import InputError
from provisioner.spec.machine_types import load_machines
from provisioner.stack.solve import solve

INLINE = """name: lab
sites:
  rack: {provider: baremetal, hosts: {r760-a: {group: train}}}
machines:
  r760xa-4xl40s: {gpu: L40S, gpus: 4}
groups:
  train: {machine: r760xa-4xl40s}
"""
BY_FILE = INLINE.replace("machines:\n  r760xa-4xl40s: {gpu: L40S, gpus: 4}\n", "machines: types/own.yaml\n")


def written(folder: Path, cluster: str, types: str = "") -> Path:
    (folder / "types").mkdir()
    if types:
        (folder / "types/own.yaml").write_text(types, encoding="utf-8")
    file = folder / "cluster.yaml"
    file.write_text(cluster, encoding="utf-8")
    return file


def test_a_group_may_use_a_type_of_the_file(tmp_path: Path) -> None:
    loaded = spec.load(written(tmp_path, INLINE))
    machine = loaded.machine("train")
    assert (machine.gpu_count, machine.provider, machine.basis.of("gpu_count")) == (4, "baremetal", "user")
    assert solve(loaded)["train"].driver


def test_types_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, BY_FILE, "machines:\n  r760xa-4xl40s: {gpu: L40S, gpus: 4}\n")
    assert spec.load(file).machine("train").gpu_model == "L40S"
    assert spec.load_shape(file, tmp_path).machine("train").gpu_model == "L40S"
    assert list(load_machines(tmp_path / "types/own.yaml", catalog.load())) == ["r760xa-4xl40s"]
    assert list(load_machines(written_inline(tmp_path), catalog.load())) == ["r760xa-4xl40s"], "a cluster.yaml serves"


def written_inline(folder: Path) -> Path:
    (folder / "inline.yaml").write_text(INLINE, encoding="utf-8")
    return folder / "inline.yaml"


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        ("machines:\n  r760xa-4xl40s: {gpu: L41S, gpus: 4}\n", "own.yaml:2:24: there is no GPU"),
        ("machines:\n  r760xa-4xl40s: {gpu: L40S, gpu_count: 4}\n", "own.yaml:2:30: unknown key"),
        ("groups: {}\n", '"machines" is missing'),
        ("", "no such file or directory"),
        ("machines: [\n", "own.yaml:2:1: "),
    ],
)
def test_mistakes_are_told_at_their_place_in_that_file(tmp_path: Path, types: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        spec.load(written(tmp_path, BY_FILE, types))
    assert problem in str(error.value)
    assert "there is no machine" not in str(error.value), "what was refused for itself is not told twice"


def test_without_own_types_nothing_is_copied(tmp_path: Path) -> None:
    plain = INLINE.replace("machines:\n  r760xa-4xl40s: {gpu: L40S, gpus: 4}\n", "").replace(
        "r760xa-4xl40s", "dgx-h100"
    )
    loaded = spec.load(written(tmp_path, plain))
    assert loaded.catalog is catalog.load()


def test_validate_does_not_call_a_file_ok_whose_types_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, BY_FILE, "machines: {r760xa-4xl40s: {gpu: L41S, gpus: 4}}\n")
    assert run(["validate", str(file)]) == 2
    assert ": ok" not in capsys.readouterr().out
