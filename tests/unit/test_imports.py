"""Packages import in one direction. A package is a folder of provisioner/ or a module at its top; imports in functions
and under TYPE_CHECKING count, because who reads a module has to know what they name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.sandbox_cluster import ROOT

ROOMS = 17
"""At most so many packages at the top of provisioner/, and no module but TOP: 14, as many as a reader keeps apart, that
make and prove a fleet, and one for each thing that is done with it (monitoring, scheduler, workloads)."""
TOP = {"__init__.py", "__main__.py"}

Edges = dict[tuple[str, str], list[str]]
"""Package that imports, package that is imported → where, as module:line."""


def test_no_package_imports_one_that_imports_it() -> None:
    edges = imports(ROOT / "provisioner")
    try:
        order(edges)
    except CycleError as error:
        cycle: list[str] = error.args[1]  # each imports what stands before it
        pairs = zip(cycle[1:], cycle, strict=False)
        pytest.fail("\n".join(f"{a} imports {b}: {', '.join(edges[a, b])}" for a, b in pairs if (a, b) in edges))


def test_there_are_few_rooms() -> None:
    entries = [entry for entry in (ROOT / "provisioner").iterdir() if entry.name not in ("__pycache__", "_data")]
    assert {entry.name for entry in entries if not entry.is_dir()} == TOP
    assert len([entry for entry in entries if entry.is_dir()]) <= ROOMS


def test_no_two_modules_import_each_other() -> None:
    """Circles of any length, also those that a function's import or TYPE_CHECKING hides."""
    files = {module_of(file): file for file in (ROOT / "provisioner").rglob("*.py")}
    sorter = TopologicalSorter[str]()
    for module, file in files.items():
        for _, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            target = name
            while target and target not in files:
                target = target.rpartition(".")[0]
            if target != module:
                sorter.add(module, target)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def module_of(file: Path) -> str:
    """Its name without `provisioner.`; "" for the package itself."""
    parts = file.relative_to(ROOT / "provisioner").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def test_imports_of_every_kind_are_seen(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "__init__.py").write_text("import provisioner.paths\n")
    (tmp_path / "paths.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from provisioner.spec.models import Group\n"
        "def f():\n    from provisioner import errors\n"
    )
    (tmp_path / "errors.py").write_text("from provisioner.errors import Exit\nimport os\n")
    edges = imports(tmp_path)
    assert edges == {("spec", "paths"): ["spec:1"], ("paths", "spec"): ["paths:3"], ("paths", "errors"): ["paths:5"]}
    with pytest.raises(CycleError):
        order(edges)


def imports(root: Path) -> Edges:
    """The imports between the packages of a folder that is `provisioner`."""
    packages = {path.stem for path in root.iterdir()}
    edges: Edges = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[0].startswith("_"):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        for line, name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            package = name.partition(".")[0]
            if package in packages and package != parts[0]:
                edges.setdefault((parts[0], package), []).append(f"{module}:{line}")
    return edges


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name, without `provisioner.`, of everything of ours that a module imports, wherever in it. A relative
    import is of its own package."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else []
        else:
            continue
        yield from ((node.lineno, n.removeprefix("provisioner.")) for n in names if n.startswith("provisioner."))


def order(edges: Iterator[tuple[str, str]] | Mapping[tuple[str, str], object]) -> None:
    """Raises CycleError where there is none."""
    sorter = TopologicalSorter[str]()
    for importer, package in edges:
        sorter.add(importer, package)
    sorter.prepare()


@pytest.mark.parametrize("module", ["azure.container", "azure.client", "aws.bucket", "tencent.site"])
def test_a_module_of_a_provider_can_be_imported_first(module: str) -> None:
    """And cluster.yaml still takes the sites of every provider."""
    program = (
        f"import provisioner.machines.providers.{module}\nfrom provisioner.spec.sites import AnySite\n"
        "assert all(name in str(AnySite) for name in ('AlicloudSite', 'AwsSite', 'AzureSite', 'TencentSite')), AnySite"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
