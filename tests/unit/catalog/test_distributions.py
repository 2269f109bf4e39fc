"""data/distributions.yaml: the one list of distributions, and that what needs more of each of them has it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from provisioner.catalog import distributions
from provisioner.machines.providers.aws.image import PARAMETERS
from provisioner.sandbox.systems import system
from provisioner.spec.stack_request import StackRequest
from provisioner.stack.candidates import candidates
from provisioner.stack.facts import rows


@pytest.mark.parametrize("name", distributions.names())
def test_a_distribution_is_known_wherever_it_has_to_be(name: str) -> None:
    row = distributions.row(name)
    assert StackRequest(os=name).os == name
    assert name in {candidate.version for candidate in candidates("os")}
    assert name in PARAMETERS
    assert system(name)["name"] == name
    assert any(block.get("family") == row["family"] for block in rows("packages"))
    assert any(name in release["needs"]["os"] for release in rows("driver"))
    assert any(name in release["needs"]["os"] for release in rows("cuda"))


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(ValidationError):
        StackRequest(os="ubuntu-20.04")
    with pytest.raises(KeyError):
        distributions.row("ubuntu-20.04")
