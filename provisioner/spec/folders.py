"""What the providers' folders add to cluster.yaml: found there, named nowhere else."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

from provisioner.spec.base import Model

FOLDER = Path(__file__).parents[1] / "machines" / "providers"
PACKAGE = "provisioner.machines.providers"
ModelT = TypeVar("ModelT", bound=Model)


def names() -> tuple[str, ...]:
    """The providers that have a folder, sorted."""
    return tuple(sorted(entry.name for entry in FOLDER.iterdir() if (entry / "__init__.py").is_file()))


def models(module: str, base: type[ModelT]) -> tuple[type[ModelT], ...]:
    """The subclasses of `base` that the folders define in a module of that name (site, state)."""
    classes: list[type[ModelT]] = []
    for name in names():
        path = f"{PACKAGE}.{name}.{module}"
        if find_spec(path) is not None:
            members = vars(import_module(path)).values()
            classes += [c for c in members if isinstance(c, type) and issubclass(c, base) and c.__module__ == path]
    return tuple(classes)


def union(module: str, base: type[Model], *more: type[Model]) -> Any:
    """These models as one type."""
    return reduce(or_, (*more, *models(module, base)))
