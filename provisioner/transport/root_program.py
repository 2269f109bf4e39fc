"""Questions to programs that run as root on a node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import printable
from provisioner.transport import ssh, ssh_failure
from provisioner.transport.root_python import PREFIX, ROOT_PYTHON, text_of


def ask(
    paths: ClusterPaths, node: str, source: str, request: Mapping[str, Any], *, deadline_s: float
) -> dict[str, Any]:
    """What the `main` of a program answers on a node: `gpuprov:` and a JSON object, texts of it printable. Raises
    GpuprovError where there is no answer within `deadline_s` seconds, or where it has an `error`."""
    argv = ssh.argv(paths, node)
    try:
        done = bounded.run(
            [*argv, ROOT_PYTHON], stdin=text_of(source, request), deadline_s=deadline_s, new_session=True
        )
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"no answer within {deadline_s:.0f} s", where=node) from None
    except bounded.UnboundedOutputError as error:
        raise GpuprovError(str(error), where=node) from None
    output = str(printable((done.stdout + done.stderr).strip()))
    if ssh_failure.is_own(argv, done.returncode):
        raise GpuprovError(f"ssh fails: {ssh_failure.explain(argv, output)}", where=node)
    lines = [line for line in done.stdout.splitlines() if line.startswith(PREFIX)]
    try:
        answer = printable(json.loads(lines[-1].removeprefix(PREFIX))) if lines else None
    except (ValueError, RecursionError):
        answer = None
    if done.returncode or not isinstance(answer, dict):
        raise GpuprovError(f"python3 as root fails: {output[-500:] or f'exit status {done.returncode}'}", where=node)
    if "error" in answer:
        raise GpuprovError(str(answer["error"])[:500], where=node)
    return answer
