"""A recipe of `gpuprov run`: recipe.yaml in a folder with the program that it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, ValidationError

from provisioner.common import paths
from provisioner.common.errors import GpuprovError, InputError
from provisioner.common.suggest import did_you_mean
from provisioner.spec.base import NAME_PATTERN, Model
from provisioner.spec.problems import to_json
from provisioner.spec.source import read
from provisioner.spec.source_map import Source

FILE = "recipe.yaml"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class Needs(Model):
    """What a recipe needs. `torch`: a range of versions as of pip; `gpu_memory_gib`: of one GPU."""

    torch: str = ""
    gpu_memory_gib: Annotated[float, Field(ge=0)] = 0.0
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    nodes: Annotated[int, Field(ge=1)] = 1


class RecipeFile(Model):
    """recipe.yaml. `folder`: what is copied to the nodes, beside the file by default."""

    description: str
    command: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    folder: str = "."
    needs: Needs = Needs()
    environment: dict[Annotated[str, Field(pattern=VARIABLE)], str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe by its name: the folder that is copied to the nodes, the command that runs in it."""

    name: str
    folder: Path
    command: tuple[str, ...]
    description: str = ""
    needs: Needs = field(default_factory=Needs)
    environment: tuple[tuple[str, str], ...] = ()


def shipped() -> dict[str, Path]:
    """The recipes that gpuprov brings: name → folder."""
    return {file.parent.name: file.parent for file in sorted(paths.data("examples").glob(f"recipes/*/{FILE}"))}


def find(name: str) -> Recipe:
    """A recipe by the name of a shipped one, or by its folder. Raises GpuprovError where there is none of that name,
    InputError for a file with mistakes."""
    known = shipped()
    if "/" not in name and name in known:
        return load(known[name])
    folder = Path(name).expanduser()
    if (folder / FILE).is_file():
        return load(folder)
    if "/" in name or folder.is_dir():
        raise GpuprovError(f"there is no {FILE} in {name}", hint="`gpuprov docs recipes` shows how to write one")
    hint = did_you_mean(name, [*known]) or f"recipes: {', '.join(known)}; or the path of a folder with {FILE}"
    raise GpuprovError(f"there is no recipe {name}", hint=hint)


def load(folder: Path) -> Recipe:
    """The recipe of a folder. Raises InputError with every problem at its line and column."""
    source = read(folder / FILE)
    document: RecipeFile | None = None
    if source.complete:
        try:
            document = RecipeFile.model_validate_json(to_json(source.value))
        except ValidationError as error:
            for problem in error.errors():
                _report(source, problem)
    if document is not None:
        content = folder / document.folder
        if not content.is_dir():
            source.report(source.mark(("folder",)).value, ("folder",), f"{content} is not a folder", "")
        if not _is_specifier(document.needs.torch):
            message = f"{document.needs.torch} is not a range of versions"
            loc = ("needs", "torch")
            source.report(source.mark(loc).value, loc, message, 'write it as pip does, such as ">=2.6"')
        name = folder.absolute().name
        if not source.problems and not _is_name(name):
            source.report(source.mark(()).value, (), f"{name} cannot be the name of a job", "use a-z, 0-9 and hyphens")
    if source.problems or document is None:
        problems = [
            replace(problem, hint="") if "gpuprov init" in problem.hint else problem for problem in source.problems
        ]
        raise InputError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return Recipe(
        name,
        content.resolve(),
        tuple(document.command),
        document.description,
        document.needs,
        tuple(document.environment.items()),
    )


def _report(source: Source, problem: Any) -> None:
    """What pydantic has found, at the position of the key, or of the nearest block around it."""
    loc = tuple(problem["loc"])
    is_variable = loc[:1] == ("environment",)
    while loc and loc not in source.marks:
        loc = loc[:-1]
    name = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    match problem["type"]:
        case "extra_forbidden":
            keys = Needs.model_fields if loc[:1] == ("needs",) else RecipeFile.model_fields
            source.report(source.mark(loc).key, loc, f"unknown key {name}", f"known: {', '.join(keys)}")
        case "missing":
            source.report(source.mark(loc).value, loc, f"{name} is missing", "")
        case "string_pattern_mismatch" if is_variable:
            source.report(source.mark(loc).value, loc, f"{name} is not the name of a variable", "A-Z, 0-9 and _")
        case _:
            text = str(problem["msg"]).replace("Input should be", "should be")
            source.report(source.mark(loc).value, loc, f"{name}: {text}", "")


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _is_name(text: str) -> bool:
    return re.fullmatch(NAME_PATTERN, text) is not None
