"""init, validate, schema and catalog, through the real entry."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from provisioner import catalog, spec
from provisioner.cli.main import run
from provisioner.spec import schema

ROOT = Path(__file__).parents[3]
GOOD = str(ROOT / "examples/aws-p4d.yaml")
BAD = str(ROOT / "tests/unit/spec/bad/unknown-keys.yaml")
CATALOG = catalog.load()


def test_validate_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", GOOD]) == 0
    assert capsys.readouterr().out == f"{GOOD}: ok\n"


def test_validate_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", GOOD, BAD]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'{BAD}:3:3: "region" is missing in sites.virginia (a region name)'
    assert lines[-1] == f"{GOOD}: ok"
    assert len(lines) == len(spec.check(BAD)) + 1


@pytest.mark.parametrize(("files", "code"), [([GOOD], 0), ([BAD], 2), ([GOOD, BAD, "/nowhere.yaml"], 2)])
def test_validate_json(files: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--json", *files]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, schema.schema("validate"))
    assert document["ok"] == (code == 0)
    assert len(document["problems"]) == sum(len(spec.check(file)) for file in files)
    assert err == ""


def test_validate_takes_the_only_file_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["validate"]) == 2
    assert "FILE is missing\n  there is no cluster.yaml in this folder: `gpuprov init`" in capsys.readouterr().err
    (tmp_path / "fleet.yaml").write_text(Path(GOOD).read_text())
    (tmp_path / "inventory.yaml").write_text("name: no-cluster\n")
    assert (run(["validate"]), capsys.readouterr().out) == (0, "fleet.yaml: ok\n")
    (tmp_path / "cluster.yaml").write_text("sites: {}\n")
    assert run(["validate"]) == 2
    assert "type `gpuprov validate cluster.yaml` (or fleet.yaml)" in capsys.readouterr().err
    (tmp_path / "fleet.yaml").unlink()
    assert run(["validate"]) == 2
    assert capsys.readouterr().out.startswith('cluster.yaml:1:1: "name" is missing')


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["up"], "gpuprov up cluster.yaml"),
        (["exec"], "gpuprov exec cluster.yaml COMMAND…"),
        (["image", "promote"], "gpuprov image promote cluster.yaml CHANNEL"),
        (["sandbox", "fault"], "gpuprov sandbox fault cluster.yaml NODE|SITE FAULT"),
    ],
)
def test_a_command_without_its_file_says_what_to_type(
    words: list[str],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert f"`gpuprov init` writes one; then `{command}`" in capsys.readouterr().err
    (tmp_path / "cluster.yaml").write_text("name: [\n")
    assert run([*words, "--json"] if words == ["up"] else words) == 2
    output = capsys.readouterr()
    assert f"type `{command}`" in output.err and "Usage: gpuprov" in output.err
    if words == ["up"]:
        assert json.loads(output.out)["error"]["hint"] == f"type `{command}`"


STACK_PROBLEMS = {
    "stack: { containers: ['nvcr.io/nvidia/pytorch:25.10-py3'] }": ("4:10", "runs on turing"),
    "stack: { driver: '595' }": ("4:10", 'nearest that works: stack.driver: "580"'),
}


@pytest.mark.parametrize("stack", STACK_PROBLEMS)
def test_validate_asks_the_solver(stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    sites = "sites: { v: { provider: aws, region: us-east-1 } }"
    groups = "groups: { t: { machine: p3.16xlarge } }"
    path.write_text(f"name: old\n{sites}\n{groups}\n{stack}\n")
    assert spec.check(path) == []
    assert run(["validate", str(path)]) == 2
    position, message = STACK_PROBLEMS[stack]
    assert capsys.readouterr().out.startswith(f"{path}:{position}: ")
    run(["validate", str(path)])
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("machine", ["p4d.24xlarge", "amd-mi300x-node"])
def test_init_writes_what_can_be_installed(machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "c.yaml"), "--machine", machine]) == 0
    assert "but: " not in capsys.readouterr().err


@pytest.mark.parametrize("name", schema.NAMES)
def test_schema(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == f"gpuprov {name}"


def test_schema_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "fleets"]) == 2
    assert "cluster, validate" in capsys.readouterr().err


@pytest.mark.parametrize("provider", [p.name for p in CATALOG.providers()])
def test_init_for_each_provider(provider: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(["init", str(path), "--provider", provider]) == 0
    loaded = spec.load(path)
    assert [site.provider for site in loaded.sites.values()] == [provider]
    assert "#" in path.read_text()


@pytest.mark.parametrize("machine", [m.name for m in CATALOG.listed.values() if not m.retired])
def test_init_for_each_machine(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(["init", str(path), "--machine", machine]) == 0
    assert next(iter(spec.load(path).groups.values())).machine == machine


@pytest.mark.parametrize("name", ["vision", "no"])
def test_init_writes_a_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.yaml"
    assert run(["init", str(file), "--name", name]) == 0
    assert spec.load(file).name == name
    wrong = tmp_path / "wrong.yaml"
    assert run(["init", str(wrong), "--name", "Vision_2"]) == 2
    assert "--name: " in capsys.readouterr().err
    assert not wrong.exists()


def test_init_writes_cluster_yaml_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    assert spec.check("cluster.yaml") == []


@pytest.mark.parametrize(
    ("options", "user", "command"),
    [([], 1000, "sudo gpuprov up c.yaml --sandbox"), ([], 0, "gpuprov up c.yaml --sandbox"),
     (["--machine", "workstation-rtx4090", "--host", "local"], 1000, "gpuprov up c.yaml")],
)  # fmt: skip
def test_init_names_the_next_command_of_this_user(
    options: list[str], user: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert run(["init", "c.yaml", *options]) == 0
    assert f"; next: {command}\n" in capsys.readouterr().err


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("mine")
    assert run(["init", str(path)]) == 2
    assert path.read_text() == "mine"
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--provider", "asw"], "did you mean aws?"),
        (["--provider", "gcp"], "known: aws"),
        (["--machine", "p4d.24xlarg"], "did you mean p4d.24xlarge"),
        (["--provider", "azure", "--machine", "p4d.24xlarge"], "is not sold by Azure"),
        (["--machine", "Standard_NC6s_v3"], "no longer sold"),
    ],
)
def test_init_refuses(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    assert run(["init", str(path), *options]) == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("file", ["/nowhere/cluster.yaml", "/dev/null/x", "a\0b"])
def test_init_where_nothing_can_be_written(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", file]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_catalog_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(CATALOG.names())
    assert any(line.endswith("retired") for line in lines)


def test_catalog_of_a_provider(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "--provider", "tencent", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(CATALOG.names("tencent"))


@pytest.mark.parametrize("machine", CATALOG.names())
def test_catalog_of_each_machine(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", machine]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"{machine}\n")
    assert run(["catalog", machine, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == machine
    assert len(document["pairs"]) == document["gpu_count"] * (document["gpu_count"] - 1) // 2


@pytest.mark.parametrize(
    ("argument", "message"), [(["p4d"], "did you mean"), (["--provider", "asw"], "did you mean aws?")]
)
def test_catalog_of_what_is_not_there(argument: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", *argument]) == 2
    assert message in capsys.readouterr().err
