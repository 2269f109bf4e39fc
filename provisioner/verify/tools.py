"""All tools, found in the modules of parsers/, and the files that a bundle can hold."""

from __future__ import annotations

import importlib
import pkgutil

from provisioner.verify import parsers
from provisioner.verify.tool import Tool


def _declared() -> tuple[Tool, ...]:
    names = sorted(info.name for info in pkgutil.iter_modules(parsers.__path__))
    modules = [importlib.import_module(f"{parsers.__name__}.{name}") for name in names]
    return tuple(tool for module in modules for tool in getattr(module, "TOOLS", ()))


TOOLS: tuple[Tool, ...] = _declared()
"""Every declaration, by the name of its module."""

FILES: dict[str, Tool] = {}
"""File of a bundle → what makes it; of two declarations of one file the first."""
for _tool in TOOLS:
    FILES.setdefault(_tool.file, _tool)
