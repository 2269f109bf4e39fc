"""Sites of a run: what they are refused for before anything is asked, and what several failures become."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, InputError, Interrupted, ProviderError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import sites
from provisioner.lifecycle.diff import absent_reports, compare
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.terraform.workspace import STOP_GRACE_S
from provisioner.rundir import fleet


def cluster(*, sandbox: bool = False, image: object = None) -> Any:
    """`checked`: the sites whose files were looked for."""
    checked: list[str] = []
    providers = SimpleNamespace(at=lambda site: SimpleNamespace(refuse_missing_files=lambda: checked.append(site)))
    spec = SimpleNamespace(image=image)
    return SimpleNamespace(file=Path("cluster.yaml"), spec=spec, sandbox=sandbox, providers=providers, checked=checked)


def test_a_recipe_of_images_is_no_fleet() -> None:
    sites.refuse_recipe(cluster())
    with pytest.raises(GpuprovError, match="is a recipe of images, not a fleet"):
        sites.refuse_recipe(cluster(image=object()))


@pytest.mark.parametrize("sandbox", [True, False])
@pytest.mark.parametrize("problems", [[], ["a subnet is missing"]])
def test_what_a_site_lacks_is_refused_but_in_a_sandbox(
    monkeypatch: pytest.MonkeyPatch, sandbox: bool, problems: list[str]
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(sites.spec, "unready", lambda *arguments: calls.append(arguments) or problems)
    checked_cluster = cluster(sandbox=sandbox)
    if problems and not sandbox:
        with pytest.raises(InputError):
            sites.refuse_unready(checked_cluster, ["a", "b"])
        assert checked_cluster.checked == []
    else:
        sites.refuse_unready(checked_cluster, ["a", "b"])
        assert checked_cluster.checked == ["a", "b"]
    assert calls == ([] if sandbox else [(checked_cluster.file, checked_cluster.spec, ["a", "b"])])


def test_an_error_of_several_sites_has_the_hints_that_there_are() -> None:
    failed = {"a": ProviderError("x"), "": ProviderError("y", hint="two"), "c": ProviderError("z", hint="two")}
    error = sites.together(failed)
    assert (error.message, error.hint) == ("site a: x\n  y\n  site c: z", "two")


def test_an_interrupted_site_stops_all_of_them() -> None:
    def call(site: str) -> str:
        if site == "b":
            raise Interrupted("Ctrl-C")
        return site

    with pytest.raises(Interrupted):
        sites.each(["a", "b"], call)


def test_half_an_answer_is_an_error_of_its_site() -> None:
    def call(_: str) -> str:
        raise KeyError("nodes")

    done, failed = sites.each(["a"], call)
    assert (done, failed["a"].message, failed["a"].where) == ({}, "KeyError: 'nodes'", "site a")


def test_terraform_has_as_long_to_end_as_it_is_given_alone() -> None:
    assert sites.STOP_S == STOP_GRACE_S


def test_a_report_of_a_machine_that_is_missing_says_that_it_is(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: fast\nsites: {here: {provider: aws, region: us-east-1}}\n"
        "groups: {train: {machine: p4d.24xlarge, count: 1}}\n"
    )
    opened = open_cluster(file, sandbox=True)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, [])
    (report,) = absent_reports(opened, compare(opened))
    assert (report.absent, report.simulated) == (True, True)
