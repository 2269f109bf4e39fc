"""terraform/maas by real Terraform, against the schema of canonical/maas, and what is asked of MAAS before."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths, data
from provisioner.machines.providers.baremetal import maas
from provisioner.machines.providers.baremetal.maas import MaasApi
from provisioner.machines.providers.baremetal.provider import BareMetal
from provisioner.machines.providers.baremetal.site import BareMetalSite
from provisioner.machines.providers.base import Place
from provisioner.machines.terraform.binary import find
from provisioner.machines.terraform_machines import Root, TerraformMachines
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.schema_provider import Cloud

pytestmark = pytest.mark.heavy

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5NBmjM4Jb6n3v8vXxkq8r6Zt3TtV7JwN0c0yWb0000 person@here"
MACHINE = "maas_instance"
MAAS = {"url": "https://maas.lab/MAAS", "pool": "gpu", "tags": {"train": ("dgx-h100", "rack-1")}}


def planned(count: int, **more: object) -> Plan:
    site = {"provider": "baremetal", "method": "maas", "maas": {**MAAS, **more}}
    spec = plans.cluster_spec("dgx-h100", count=count, sites={"here": site})
    offline_plan = plans.plan(spec)
    system = offline_plan.groups[0].stack.os
    bases = {"here": {system: BaseImage(id="noble", why="test")}}
    return Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)


def provider_of(plan: Plan, workspace: Path) -> BareMetal:
    return BareMetal(Place("test", "here", plan.spec.sites["here"], workspace))


@pytest.mark.heavy
def test_machines_are_deployed_kept_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    plan, cloud = planned(2, network="10.77.60.0/24"), Cloud("maas")
    with cloud.serving() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=False)
        root = Root(key=lambda: KEY, identity=lambda: "0123456789ab")
        folder = paths.site("here")

        def machines(desired: Plan, known: tuple[str, ...] = ()) -> TerraformMachines:
            return TerraformMachines(provider_of(desired, folder), root, find(), Events(), known=known)

        nodes = machines(plan).apply(plan, machines(plan).plan(plan))
        assert {node.name: node.group for node in nodes} == {"train-0": "train", "train-1": "train"}
        assert all(re.fullmatch(r"10\.77\.60\.[0-9]+", node.address) for node in nodes), "of the wanted network"
        deployed = cloud.of(MACHINE)
        assert [machine["allocate_params"][0]["pool"] for machine in deployed] == ["gpu", "gpu"]
        assert sorted(deployed[0]["allocate_params"][0]["tags"]) == ["dgx-h100", "rack-1"]
        assert deployed[0]["deploy_params"][0]["distro_series"] == "noble"
        assert KEY in deployed[0]["deploy_params"][0]["user_data"]
        assert deployed[0]["timeouts"]["create"] == "1200s"
        files = "".join(path.read_text(errors="replace") for path in folder.rglob("*.tf"))
        assert "a:b:c" not in files, "no secret in a file"
        known = ("train-0", "train-1")
        other = planned(2, network="10.77.60.0/24", pool="other")
        assert machines(other, known).plan(other).total == 0, "what stands stays as it was made"
        fewer = planned(1, network="10.77.60.0/24")
        (action,) = machines(fewer, known).plan(fewer).actions
        assert (action.what, action.node) == ("delete", "train-1")
        assert machines(plan, known).destroy(plan) > 0
        assert cloud.of(MACHINE) == []


@pytest.mark.heavy
def test_a_machine_without_an_address_in_the_network_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    plan, cloud = planned(1, network="10.9.9.0/24"), Cloud("maas")
    with cloud.serving() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        root = Root(key=lambda: KEY, identity=lambda: "0123456789ab")
        site_machines = TerraformMachines(provider_of(plan, tmp_path / "sites" / "here"), root, find(), Events())
        with pytest.raises(GpuprovError, match="no IPv4 address in 10"):
            site_machines.apply(plan, site_machines.plan(plan))


def test_the_version_is_that_of_the_module() -> None:
    text = (data("terraform") / "maas" / "versions.tf").read_text()
    assert f'version = "{maas.VERSION}"' in text


class Region(BaseHTTPRequestHandler):
    """A MAAS whose machines have tags; status 401 for another key than a:b:c."""

    ready: tuple[str, ...] = ()
    allocated: tuple[dict[str, str], ...] = ()
    asked: list[dict[str, list[str]]]

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if query.get("status") == ["ready"]:
            type(self).asked.append(query)
        signed = self.headers["Authorization"]
        allowed = 'oauth_consumer_key="a"' in signed and 'oauth_signature="%26c"' in signed
        answer: object = [{"system_id": system_id} for system_id in self.ready]
        if self.path.partition("?")[0].endswith("/api/2.0/users/"):
            answer = {"username": "ops"} if query == {"op": ["whoami"]} else None
        elif query == {"status": ["allocated"]}:
            answer = self.allocated
        body = json.dumps(answer).encode() if allowed else b"denied"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def region() -> Iterator[tuple[type[Region], MaasApi]]:
    handler = type("Asked", (Region,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler, MaasApi(f"http://127.0.0.1:{server.server_port}/MAAS/")
        server.shutdown()


def findings_of(api: MaasApi, existing: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    plan = planned(3)
    site = plan.spec.sites["here"]
    assert isinstance(site, BareMetalSite)
    assert site.maas is not None
    return [(finding.status, finding.message) for finding in maas.preflight(api, site.maas, "here", plan, existing)]


def test_enough_machines_have_to_be_ready(
    region: tuple[type[Region], MaasApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, api = region
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    handler.ready = ("abc", "abd")
    filters = "(tags dgx-h100, tags rack-1, pool gpu)"
    assert findings_of(api) == [("blocks", f"2 of 3 machines for train are Ready {filters}")]
    assert handler.asked == [{"status": ["ready"], "tags": ["dgx-h100", "rack-1"], "pool": ["gpu"]}]
    assert findings_of(api, ("train-0",)) == [("ok", f"2 of 2 machines for train are Ready {filters}")]
    assert findings_of(api, ("train-0", "train-1", "train-2")) == []


def test_a_maas_without_tls_is_said_each_time(
    region: tuple[type[Region], MaasApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, api = region
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    monkeypatch.setitem(MAAS, "insecure", True)
    monkeypatch.setitem(MAAS, "url", "http://maas.lab:5240/MAAS")
    status, message = findings_of(api)[0]
    assert (status, message.partition(" has no TLS")[0]) == ("warning", "http://maas.lab:5240/MAAS")


def test_machines_that_a_killed_run_has_left_are_told(
    region: tuple[type[Region], MaasApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the key's own account; with nothing to be deployed nobody asks."""
    handler, api = region
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    handler.ready = ("abc", "abd", "abe")
    handler.allocated = (
        {"system_id": "xyz", "hostname": "gpu-7", "owner": "ops"},
        {"system_id": "xya", "hostname": "gpu-8", "owner": "somebody"},
    )
    assert findings_of(api)[1:] == [("warning", "Allocated to ops and not deployed: gpu-7 (xyz)")]
    assert findings_of(api, ("train-0", "train-1", "train-2")) == []
    handler.allocated = ({"hostname": "gpu-7"},)
    ((status, message),) = findings_of(api)[1:]
    assert (status, message.startswith("whether machines were left Allocated")) == ("unknown", True)


def test_what_maas_does_not_answer_is_said(
    region: tuple[type[Region], MaasApi], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, api = region
    monkeypatch.setenv("MAAS_API_KEY", "a:b:wrong")
    assert findings_of(api) == [("blocks", "MAAS answers 401")]
    monkeypatch.setenv("MAAS_API_KEY", "secret")
    ((status, message),) = findings_of(api)
    assert (status, "secret" in message) == ("blocks", False)
    monkeypatch.setenv("MAAS_API_KEY", "a:b:c")
    ((status, message),) = findings_of(MaasApi("http://127.0.0.1:9/MAAS"))
    assert status == "unknown"
    assert "was not reached" in message


def test_what_is_deployed_is_the_series_of_the_stack(tmp_path: Path) -> None:
    plan = planned(1)
    provider = provider_of(plan, tmp_path)
    assert provider.base_image("ubuntu-24.04").id == "noble"
    with pytest.raises(GpuprovError, match="debian-12"):
        provider.base_image("debian-12")
    assert provider.hosts is None, "MAAS has the machines"
    assert catalog.load().provider("baremetal").user == "ubuntu"
