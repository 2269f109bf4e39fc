"""Nobody is told to install gpuprov from a package index: it is in none, and the name is anybody's there."""

from __future__ import annotations

import re
import subprocess
import tomllib

from provisioner.common import extras
from tests.support.sandbox_cluster import ROOT

FROM_AN_INDEX = re.compile(r"""(pip|pipx|uv tool|uv pip) install (-\S+ )*['"]?gpuprov\b""")
FROM_A_CHECKOUT = re.compile(r"pip install '\.\[(\w+)\]'")


def test_nothing_tells_to_install_it_from_a_package_index() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*.yaml", "*.yml", "*.j2", "*.sh", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    wrong = [
        f"{name}: {match[0]}"
        for name in listed
        if name != "tests/unit/common/test_extras.py" and (ROOT / name).is_file()
        for match in FROM_AN_INDEX.finditer((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_every_extra_that_is_named_is_one() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    documented_extras = {extra for page in pages for extra in FROM_A_CHECKOUT.findall(page.read_text(encoding="utf-8"))}
    assert {"alicloud", "azure", "tencent"} <= documented_extras <= set(known)
    assert FROM_A_CHECKOUT.findall(extras.install("azure")) == ["azure"]
