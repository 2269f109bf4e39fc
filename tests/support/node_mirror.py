"""A repository inside a sandbox node, on its loopback address, that can be told to misbehave; ad hoc module calls."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provisioner.common.paths import cache
from provisioner.sandbox import packages, repository
from provisioner.sandbox.deb import Deb
from provisioner.sandbox.keys import Keys, keys
from provisioner.stack.models import Package, Stack
from tests.support import inside
from tests.support.sandbox_cluster import ROOT, SandboxCluster

PORT = 8099
URL = f"http://127.0.0.1:{PORT}"
FOLDER = "/srv/test-mirror"
MODULES = "/srv/test-modules"
START = f"""
import runpy, sys
sys.path.insert(0, {MODULES!r})
import ansible.module_utils.basic as basic
basic._ANSIBLE_ARGS, basic._ANSIBLE_PROFILE = sys.stdin.buffer.read(), "legacy"
runpy.run_module("ansible.modules." + sys.argv[1], run_name="__main__")
"""
"""How a module runs without Ansible's wrapper: its arguments where the wrapper leaves them."""

SERVER = f"""
import http.server, json, re
FAULTS = {FOLDER!r} + "/faults.json"
class Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        faults = json.load(open(FAULTS))
        for fault in faults:
            if fault["times"] != 0 and re.search(fault["path"], self.path):
                fault["times"] -= 1
                json.dump(faults, open(FAULTS, "w"))
                if fault["status"] != 200:
                    return self.send_error(fault["status"])
                return self.half()
        del self.headers["If-Modified-Since"]  # two repositories of one second are two
        super().do_GET()
    def half(self):
        content = open(self.translate_path(self.path), "rb").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if self.server.cut else len(content) // 2))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), lambda *a: Files(*a, directory={FOLDER!r} + "/http"))
server.cut = False
server.serve_forever()
"""


@dataclass
class Called:
    """How one module call ended on the node."""

    ok: bool
    result: dict[str, Any]

    @property
    def message(self) -> str:
        assert not self.ok, self.result
        return str(self.result["msg"])

    @property
    def changed(self) -> bool:
        assert self.ok, self.result
        return bool(self.result["changed"])


@dataclass
class NodeMirror:
    """The mirror of one node of a sandbox. `stack`: what it serves, with its own address in the repositories."""

    sandbox_cluster: SandboxCluster
    node: str
    folder: Path
    container: str = ""
    keys: Keys = field(default_factory=lambda: keys(cache() / "sandbox" / "keys"))
    _count: int = 0

    def __post_init__(self) -> None:
        self.container = self.sandbox_cluster.container(self.node)

    def shell(self, script: str, *, check: bool = True) -> str:
        """A script as root on the node, past ssh."""
        done = inside.run(self.container, "sh", "-c", script)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout.strip()

    def locked(self) -> dict[str, Any]:
        """The stack of the node's group, as the roles get it."""
        inventory = self.sandbox_cluster.inventory()
        groups = inventory["all"]["children"].values()
        group = next(g for g in groups if self.node in g["hosts"])
        return dict(group["vars"]["gpuprov_stack"])

    def serve(
        self, *stacks: dict[str, Any], edit: Callable[[Deb], Deb] | None = None, signed_by: Keys | None = None
    ) -> None:
        """Fill the mirror with the packages of these stacks and start it, without faults."""
        self._count += 1
        root = self.folder / str(self._count) / "http"
        root.mkdir(parents=True)
        build = packages.build

        def edited(package: Package, other_packages: Iterable[Package], architecture: str) -> Deb:
            deb = build(package, other_packages, architecture)
            return edit(deb) if edit else deb

        repository.packages.build = edited  # type: ignore[assignment]
        try:
            repository.write_repositories(root, [as_locked(s) for s in stacks], signed_by or self.keys, "amd64")
        finally:
            repository.packages.build = build  # type: ignore[assignment]
        self.shell(f"systemctl stop test-mirror 2>/dev/null; rm -rf {FOLDER}; mkdir -p {FOLDER}", check=False)
        subprocess.run(["podman", "cp", str(root), f"{self.container}:{FOLDER}"], check=True, timeout=120)
        inside.run(self.container, "sh", "-c", f"cat > {FOLDER}/server.py", stdin=SERVER).check_returncode()
        self.faults()
        self.start()

    def start(self) -> None:
        self.shell(f"systemd-run --quiet --collect --unit test-mirror /usr/bin/python3 {FOLDER}/server.py")
        self.shell(f"for i in $(seq 100); do curl -s -o /dev/null {URL}/ && exit 0; sleep 0.1; done; exit 1")

    def wait_for_boot(self) -> None:
        """Until the node, stopped or on its way, is up; a reboot takes a moment to begin."""
        for _ in range(300):
            time.sleep(0.2)
            if self.shell("systemctl is-system-running", check=False) in ("running", "degraded"):
                return
        raise AssertionError(self.shell("systemctl list-jobs; systemctl --failed", check=False))

    def faults(self, *faults: tuple[str, int, int]) -> None:
        """(pattern of the path, status or 200 for half of the content, how often; -1: for ever)."""
        rows = [{"path": path, "status": status, "times": times} for path, status, times in faults]
        self.shell(f"printf '%s' '{json.dumps(rows)}' > {FOLDER}/faults.json")

    def here(self, stack: dict[str, Any]) -> dict[str, Any]:
        """The same stack, to be had from this mirror; vendors' archives stay where the sandbox has them."""
        repositories = [
            r if r.get("archives") else
            {**r, "uri": f"{URL}/{repository.folder(r['name'], stack['os'])}", "key_url": f"{URL}/keys/{r['name']}.asc",
             "fingerprint": self.keys.fingerprint}
            for r in stack["repositories"]
        ]  # fmt: skip
        return {**stack, "repositories": repositories}

    def call(self, module: str, **arguments: Any) -> Called:
        """One module on the node, as Ansible starts it there but without the way through ssh: four calls a second."""
        self._bring_ansible()
        request = json.dumps(
            {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_tmpdir": "/tmp", "_ansible_remote_tmp": "/tmp"}}
        )
        done = inside.run(self.container, "python3", "-c", START, module, stdin=request, timeout=300)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stdout + done.stderr
        result = json.loads(lines[-1])
        return Called(not result.get("failed"), result)

    def _bring_ansible(self) -> None:
        if self.shell(f"test -d {MODULES} && echo there", check=False):
            return
        import ansible

        source = Path(ansible.__path__[0])
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "ansible"
            ignored = shutil.ignore_patterns("__pycache__", "facts", "powershell", "csharp")
            shutil.copytree(source / "module_utils", folder / "module_utils", ignore=ignored)
            for file in (ROOT / "ansible/plugins/module_utils").glob("*.py"):
                shutil.copy(file, folder / "module_utils")
            shutil.copytree(ROOT / "ansible/plugins/modules", folder / "modules", ignore=ignored)
            for package in (folder, folder / "modules"):
                (package / "__init__.py").touch()
            shutil.copy(source / "release.py", folder)
            self.shell(f"mkdir -p {MODULES}")
            subprocess.run(["podman", "cp", str(folder), f"{self.container}:{MODULES}"], check=True, timeout=120)


def moved(stack: dict[str, Any], driver: str) -> dict[str, Any]:
    """The same stack with another driver, in every name and version."""
    return dict(json.loads(json.dumps(stack).replace(stack["driver"], driver)))


def with_script(deb: Deb, name: str, script: str) -> Deb:
    """The package with one more maintainer script."""
    return replace(deb, scripts={**deb.scripts, name: "#!/bin/sh\nset -e\n" + script})


def as_locked(stack: dict[str, Any]) -> Stack:
    """The stack of a node as the lock has it: on nodes a repository of archives names its packages too."""
    rows = [{key: value for key, value in row.items() if key != "packages"} for row in stack["repositories"]]
    return Stack(**{**stack, "repositories": rows})
