"""Which roles run, and which halves of them, for what differs on a node."""

from __future__ import annotations

import pytest

from provisioner.configure import drift
from provisioner.configure.drift import Difference, Pass


def package(role: str | None) -> Difference:
    return Difference("package", "x", "2", "1", "x is 1, locked 2", role)


def unconfigured(role: str) -> Difference:
    return Difference("stamp", role, "a", None, f"{role} is not configured", role, configures=True)


def unit(role: str, *, loaded: bool = False) -> Difference:
    return Difference("unit", "x.service", "active", "inactive", "x.service is inactive", role, configures=loaded)


INSTALL = Pass(frozenset({"nccl"}), "install")


@pytest.mark.parametrize("role_names", [["base"], ["base", "cuda"]])
def test_most_of_what_an_image_has_is_configured_after_the_rest_is_installed(role_names: list[str]) -> None:
    actual = [package("nccl"), *map(unconfigured, role_names)]
    assert drift.passes(actual) == [INSTALL, Pass(frozenset({"nccl", *role_names}), "configure")]


@pytest.mark.parametrize("install", [["nccl"], ["nccl", "cuda"]])
def test_where_most_roles_install_both_halves_run_at_once(install: list[str]) -> None:
    actual = [*map(package, install), *map(unconfigured, ["base"][: len(install) - 1])]
    assert drift.passes(actual) == [Pass(frozenset({*install, *["base"][: len(install) - 1]}))]


def test_a_role_that_others_follow_is_never_installed_alone() -> None:
    actual = [package("nvidia_driver"), unconfigured("base"), unconfigured("nccl")]
    assert drift.passes(actual) == [drift.EVERYTHING]


def test_a_role_that_others_follow_and_that_is_installed_lets_others_be_installed_first() -> None:
    actual = [package("nccl"), unconfigured("base"), unconfigured("nvidia_driver")]
    assert drift.passes(actual) == [INSTALL, Pass(frozenset(), "configure")]


def test_what_no_role_answers_for_runs_all_roles_whatever_else_is_only_configured() -> None:
    actual = [package(None), unconfigured("base"), unconfigured("nccl"), unconfigured("cuda")]
    assert drift.passes(actual) == [drift.EVERYTHING]


def test_a_stopped_unit_of_a_role_that_others_follow_runs_that_role_alone() -> None:
    assert drift.passes([unit("nvidia_driver", loaded=True)]) == [Pass(frozenset({"nvidia_driver"}), "configure")]
    assert drift.passes([unit("nvidia_driver")]) == [Pass(frozenset({"nvidia_driver"}))]


def test_the_unit_of_a_role_that_is_not_configured_yet_comes_with_its_configuration() -> None:
    assert drift.passes([unconfigured("nccl"), unit("nccl")]) == [Pass(frozenset({"nccl"}), "configure")]


def test_the_unit_of_another_role_is_installed() -> None:
    assert drift.passes([unconfigured("nccl"), unit("cuda")]) == [
        Pass(frozenset({"cuda"}), "install"),
        Pass(frozenset({"nccl", "cuda"}), "configure"),
    ]


def test_a_package_of_a_role_that_is_not_configured_yet_is_installed() -> None:
    assert drift.passes([unconfigured("nccl"), package("nccl")]) == [Pass(frozenset({"nccl"}))]


def test_a_unit_that_is_missing_beside_one_that_is_stopped_is_installed() -> None:
    assert drift.passes([unit("nccl", loaded=True), unit("nccl")]) == [Pass(frozenset({"nccl"}))]


def test_nothing_runs_for_what_no_role_mends() -> None:
    assert drift.passes([Difference("system", "system", "a", "b", "b runs", mended=False)]) == []
