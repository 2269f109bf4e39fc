"""How the parts of gpuprov that not everybody needs are installed: extras of pyproject.toml.

gpuprov is in no package index yet, where anybody could take its name: everything is installed from a checkout. What
tells people so is made here; README.md and docs/ say the same (tests/unit/common/test_extras.py).
"""

from __future__ import annotations


def install(extra: str) -> str:
    """The command, for a hint."""
    return f"in gpuprov's checkout: pip install '.[{extra}]'"
