"""What nvidia-imex-ctl of a simulated node says of its own daemon and of others, and what gpuprov makes of it."""

from __future__ import annotations

import pytest

from provisioner.sandbox import faults
from provisioner.sandbox.node import kernel
from provisioner.verify.pytest_runner import Case
from tests.support.healthy_bundle import bundle, expected
from tests.support.healthy_bundle import healthy as healthy_texts
from tests.support.healthy_gpu import IMEX_HOSTS
from tests.support.judging import judge
from tests.support.sandbox_node import MakeNode, healthy

GB200 = "p6e-gb200.36xlarge"
TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.0.3.0
        /24 link UNICAST
     |-- 10.0.3.17
        /32 host LOCAL
     |-- 10.0.3.255
        /32 link BROADCAST
"""


@pytest.mark.parametrize(
    ("fault", "fails", "condemns"),
    [("", set(), False), ("imex-not-ready", {"services.imex_own"}, True),
     ("imex-domain-down", {"services.imex_own"}, True),
     ("imex-node-lost", {"services.imex_nodes"}, False)],
)  # fmt: skip
def test_the_nodes_own_daemon_condemns_and_others_warn(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, fault: str, fails: set[str], condemns: bool
) -> None:
    node = make_node(GB200)
    monkeypatch.setattr(kernel, "daemons", lambda: {"nvidia-imex": 1})
    for path, text in (("etc/nvidia-imex/nodes_config.cfg", "\n".join(IMEX_HOSTS)), ("proc/net/fib_trie", TRIE)):
        (node.root / path).parent.mkdir(parents=True, exist_ok=True)
        (node.root / path).write_text(text, encoding="utf-8")
    if fault:
        node.become(faults.with_faults(healthy(GB200), [faults.Active(fault, 0)], "580.173.02"))
    texts = healthy_texts(GB200) | {"imex.json": node.says("nvidia-imex-ctl", "-N", "-j")}
    checks = judge({"a": Case(bundle(texts), expected(GB200, "quick"), None)})["a"].checks
    assert {check.id for check in checks if check.status == "fail"} == fails
    assert any(check.condemns for check in checks) == condemns
