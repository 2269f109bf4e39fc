"""testinfra's `host` in users' own checks: answered by what was collected, live for the rest, unknown offline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.check import Unknown
from provisioner.verify.facts import Facts, read
from provisioner.verify.testinfra_host import NodeHost
from tests.support.healthy_bundle import DRIVER, FRAMEWORK, KERNEL, NCCL, bundle, healthy

P4D = "p4d.24xlarge"


@pytest.fixture(scope="module")
def facts() -> Facts:
    return read(bundle(healthy(P4D)))


@pytest.fixture
def host(facts: Facts) -> NodeHost:
    return NodeHost("a", facts, None)


def test_what_was_collected_needs_no_connection(host: NodeHost) -> None:
    assert host.package("nvidia-open").is_installed
    assert host.package("nvidia-open").version == f"{DRIVER}-0ubuntu1"
    assert host.package("libnccl2").version.startswith(NCCL)
    assert not host.package("nginx").is_installed
    assert host.service("nvidia-dcgm").is_running
    assert host.service("nvidia-dcgm.service").is_enabled
    assert host.service("nvidia-dcgm").systemd_properties["LoadState"] == "loaded"
    assert host.sysctl("vm.max_map_count") == 1048576
    assert host.file("/dev/nvidia0").exists and not host.file("/dev/nvidia9").exists
    assert host.system_info.distribution == "ubuntu" and host.system_info.release == "24.04"
    assert host.check_output("uname -r") == KERNEL


def test_gpus_links_and_frameworks_read_as_sentences(host: NodeHost) -> None:
    assert host.gpu.count == 8
    assert host.gpu(3).ecc_uncorrectable == 0
    assert all(gpu.persistence for gpu in host.gpu)
    assert all(links.active == 12 for links in host.nvlink)
    assert host.framework("pytorch").torch == FRAMEWORK["torch"]


@pytest.mark.parametrize("ask", [
    lambda host: host.file("/etc/shadow").exists,
    lambda host: host.run("rm -rf /"),
    lambda host: host.run("uname -r; id"),
    lambda host: host.service("nginx").is_running,
    lambda host: host.gpu(9),
    lambda host: host.gpu(0).margin,
    lambda host: host.framework("vllm"),
    lambda host: host.sysctl("kernel.hostname"),
])  # fmt: skip
def test_what_was_not_collected_is_unknown(host: NodeHost, ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Unknown):
        ask(host)


def test_nothing_is_fine_where_nothing_was_read(facts: Facts) -> None:
    blind = NodeHost("a", replace(facts, packages=None, units=None, smi=None, nvlinks=None, frameworks=None), None)
    for ask in (
        lambda: blind.package("nvidia-open").is_installed,
        lambda: blind.service("nvidia-dcgm").is_running,
        lambda: blind.gpu.count,
        lambda: blind.nvlink.count,
        lambda: blind.framework().torch,
    ):
        with pytest.raises(Unknown):
            ask()


def test_what_no_bundle_has_is_told_by_its_file() -> None:
    log_alone = NodeHost("a", read(Bundle({"dmesg.txt": Output("x")})), None)
    with pytest.raises(Unknown, match=r"os-release\.txt is not in the bundle"):
        _ = log_alone.package("nvidia-open").is_installed
    system = NodeHost("a", read(Bundle({"os-release.txt": Output('ID=ubuntu\nVERSION_ID="24.04"\n')})), None)
    with pytest.raises(Unknown, match=r"packages\.txt is not in the bundle"):
        _ = system.package("nvidia-open").is_installed
    with pytest.raises(Unknown, match=r"units\.txt is not in the bundle"):
        _ = system.service("nvidia-dcgm").is_running


def test_the_rest_is_asked_live(facts: Facts) -> None:
    host = NodeHost("a", facts, "local://")
    assert host.check_output("echo %s", "a b") == "a b"
    assert host.package("nvidia-open").version == f"{DRIVER}-0ubuntu1", "this computer was not asked"


def test_a_name_that_facts_do_not_have_is_an_error(host: NodeHost) -> None:
    with pytest.raises(AttributeError):
        host.gpu(0).horsepower  # noqa: B018
