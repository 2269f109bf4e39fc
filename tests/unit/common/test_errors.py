"""Errors and the codes by which programs tell them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from provisioner.cli import exit as endings
from provisioner.cli.main import run
from provisioner.common.errors import CODES, Declined, GpuprovError, Interrupted, LockedError, ProviderError
from provisioner.machines.providers import cloud_errors
from tests.support.sandbox_cluster import ROOT


def classes(base: type[GpuprovError] = GpuprovError) -> Iterator[type[GpuprovError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__.startswith("provisioner."):
            yield from classes(kind)


def test_every_kind_of_error_has_a_code_of_its_own_that_is_explained() -> None:
    for file in sorted((ROOT / "provisioner").rglob("*.py")):
        if re.search(r"^class \w+\((\w*Error|Interrupted|Declined|StackConflict)\):", file.read_text(), re.M):
            import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    kinds = [*classes()]
    assert len(kinds) > 12
    codes = [kind.code for kind in kinds]
    assert sorted(codes) == sorted({*codes}), "two kinds have the same code"
    outside = {"usage", "this_machine", "internal_error", "ended"}
    assert {*codes} | {*cloud_errors.ERROR_CODES.values()} | outside == {*CODES}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GpuprovError("no"), "refused"),
        (ProviderError("no", code="quota"), "quota"),
        (ProviderError("no", code=""), "provider_failed"),
        (LockedError("no"), "locked"),
        (Interrupted("no"), "interrupted"),
        (Declined("no"), "declined"),
        (KeyboardInterrupt(), "interrupted"),
        (PermissionError(13, "Permission denied", "/x"), "this_machine"),
    ],
)
def test_the_document_has_the_code(error: BaseException, code: str) -> None:
    assert endings.ending_of(error).document().error.code == code


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["plan", "missing.yaml", "--json"], "invalid_file"), (["plan", "--json", "--nonsense"], "usage")],
)
def test_a_command_prints_it(argv: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
