"""Which roles run, and which halves of them, for what differs on a node of a golden image."""

from __future__ import annotations

from provisioner.configure import drift
from provisioner.configure.drift import Difference, Pass


def package(role: str) -> Difference:
    return Difference("package", "x", "2", "1", "x is 1, locked 2", role)


def unconfigured(role: str) -> Difference:
    return Difference("stamp", role, "a", None, f"{role} is not configured", role, configures=True)


def test_most_of_what_an_image_has_is_configured_after_the_rest_is_installed() -> None:
    found = [package("nccl"), unconfigured("base"), unconfigured("cuda")]
    assert drift.passes(found) == [
        Pass(frozenset({"nccl"}), "install"),
        Pass(frozenset({"nccl", "base", "cuda"}), "configure"),
    ]


def test_a_role_that_others_follow_is_never_installed_alone() -> None:
    found = [package("nvidia_driver"), unconfigured("base"), unconfigured("nccl")]
    assert drift.passes(found) == [drift.EVERYTHING]
