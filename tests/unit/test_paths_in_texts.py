"""Paths of the source tree that documentation, comments and docstrings name exist."""

from __future__ import annotations

import re
import subprocess

from tests.support.sandbox_cluster import ROOT

NAMED = re.compile(r"(?<![\w./<*-])((?:[a-z_]+/)+[a-z_0-9]+\.py)\b")
"""As provisioner/spec/rules.py, spec/rules.py; a name without a folder may be of any tool."""
EXAMPLES = ("docs/extending/", "CHANGELOG", "tests/")
"""Pages whose files a test makes; what was once; tests, which have paths of their own."""
ELSEWHERE = {
    "azurelinuxagent/pa/deprovision/default.py", "pa/deprovision/default.py", "protocol/wire.py",
    "common/http/request.py", "common/abstract_client.py",
    "megatron/training/theoretical_memory_usage.py", "torchtitan/parallelisms/parallelize_llama.py",
    "torchtitan/tools/utils.py", "composer/callbacks/speed_monitor.py", "models/sku_list.py",
}  # fmt: skip
"""Of other projects."""


def test_every_path_that_is_named_exists() -> None:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listing.stdout.split() if (ROOT / name).is_file()]
    ends = {"/".join(name.split("/")[start:]) for name in files for start in range(name.count("/") + 1)}
    wrong = [
        f"{name}: {path}"
        for name in files
        if name.endswith((".py", ".md", ".yaml", ".yml", ".j2"))
        and not name.startswith((*EXAMPLES, "CHANGELOG", "tests/"))
        for path in NAMED.findall((ROOT / name).read_text(encoding="utf-8"))
        if path not in ends | ELSEWHERE
    ]
    assert wrong == []
