"""gds.txt: `gdscheck -p` of GPUDirect Storage, which is in no directory of PATH.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import os
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, result, run

GDSCHECK = (
    "/usr/local/cuda/gds/tools/gdscheck",
    "/usr/local/cuda/gds/tools/gdscheck.py",
    "/usr/libexec/gds/tools/gdscheck",
)


def gds(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    tool = next((path for path in GDSCHECK if os.access(path, os.X_OK)), None)
    if tool is None:
        return result(missing=True, error="gdscheck is not installed")
    return run([tool, "-p"], seconds, merge=True)


COLLECTORS["gds.txt"] = gds
