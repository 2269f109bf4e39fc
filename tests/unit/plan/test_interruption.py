"""Which nodes are told that their machine is taken away, and what they are given to run then."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from provisioner import spec
from provisioner.common.errors import InputError
from provisioner.configure import inventory
from provisioner.plan.roles import interruption
from provisioner.spec.models import ClusterSpec
from tests.support import plans

HOOK = "scontrol update nodename=\"$(hostname)\" state=drain; pkill -USR1 -f 'train{{ 7 }}.py'"


def interruption_of(machine: str, capacity: dict[str, Any], *, simulated: bool = True, **keys: Any) -> Any:
    """gpuprov_interruption of a group that is bought so."""
    document = plans.cluster_spec(machine, **keys).model_dump(mode="json")
    document["groups"]["train"]["capacity"] = capacity
    plan = plans.plan(ClusterSpec.model_validate_json(json.dumps(document)))
    return inventory.group_variables("train", replace(plan, simulated=simulated))["gpuprov_interruption"]


@pytest.mark.parametrize(
    ("machine", "capacity", "is_announced"),
    [
        ("p4d.24xlarge", {"kind": "spot"}, True),
        ("p4d.24xlarge", {"kind": "on-demand", "fallback": ["spot"]}, True),
        ("p4d.24xlarge", {"kind": "spot", "fallback": ["on-demand"]}, True),
        ("p4d.24xlarge", {}, False),
        ("p4d.24xlarge", {"kind": "reservation", "id": "cr-1", "fallback": ["on-demand"]}, False),
        ("Standard_ND96asr_v4", {"kind": "spot"}, True),
        ("GN10Xp.20XLARGE320", {"kind": "spot"}, True),
        ("ecs.gn7-c13g1.26xlarge", {"kind": "spot"}, True),
        ("ecs.gn7-c13g1.26xlarge", {}, False),
        ("p4d.24xlarge", {"kind": "block", "id": "cr-0123456789abcdef0"}, True),
    ],
)
def test_where_a_machine_may_be_taken_and_says_so(machine: str, capacity: dict[str, Any], is_announced: bool) -> None:
    assert (interruption_of(machine, capacity) is not None) == is_announced


def test_of_a_block_no_metadata_service_is_asked() -> None:
    block = {"kind": "block", "id": "cr-0123456789abcdef0"}
    assert interruption_of("p4d.24xlarge", block, simulated=False)["metadata"] is None
    assert (
        interruption_of("p4d.24xlarge", block | {"fallback": ["spot"]}, simulated=False)["metadata"]
        == "169.254.169.254:80"
    )


def test_what_the_role_is_given() -> None:
    spot = {"kind": "spot"}
    plain = interruption_of("p4d.24xlarge", spot, simulated=False)
    assert plain == {"metadata": "169.254.169.254:80", "service": "aws", "textfile": None, "hook": None}
    assert interruption_of("Standard_NC24ads_A100_v4", spot, simulated=False)["service"] == "azure"
    tencent = interruption_of("GN10Xp.20XLARGE320", spot, simulated=False)
    assert (tencent["metadata"], tencent["service"]) == ("169.254.0.23:80", "tencent")
    alibaba = interruption_of("ecs.gn7-c13g1.26xlarge", spot, simulated=False)
    assert (alibaba["metadata"], alibaba["service"]) == ("100.100.100.200:80", "alicloud")
    assert interruption_of("Standard_NC24ads_A100_v4", spot)["service"] == "aws", "the stand-in of a sandbox"
    full = interruption_of(
        "p4d.24xlarge", spot, hooks={"interrupted": HOOK}, monitoring={"health_check": {"textfile": "/srv/m/x.prom"}}
    )
    assert full["textfile"] == "/srv/m/gpuprov-interruption.prom"
    text = base64.b64decode(full["hook"]).decode()
    assert text.partition("\n")[2] == HOOK + "\n"
    # The machine of the sandbox may be one of Amazon's: its own notices are not asked for.
    assert full["metadata"].startswith("127.0.0.1:")


FILE = """name: a
sites: {{v: {{provider: aws, region: us-east-1}}}}
groups: {{t: {{machine: p4d.24xlarge, capacity: {{kind: spot}}}}}}
hooks:
  interrupted: {}
"""


def test_a_command_is_what_was_written(tmp_path: Any) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.format(">-\n    " + HOOK.replace("; ", ";\n    ")))
    assert spec.load(file).hooks.interrupted == HOOK


@pytest.mark.parametrize("wrong", ["[a, b]", "{run: a}", "''", "5", "true", "'" + "x" * 4097 + "'"])
def test_what_is_no_command_is_refused_at_its_place(tmp_path: Any, wrong: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.format(wrong))
    with pytest.raises(InputError) as caught:
        spec.load(file)
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (5, "hooks.interrupted")


@pytest.mark.parametrize(
    ("site_and_group", "refused"),
    [
        ("aws, region: us-east-1}}, groups: {t: {machine: p4d.24xlarge, capacity: {kind: spot}}}", False),
        ("aws, region: us-east-1}}, groups: {t: {machine: p4d.24xlarge, capacity: {fallback: [spot]}}}", False),
        ("aws, region: us-east-1}}, groups: {t: {machine: p4d.24xlarge}}", True),
        ("aws, region: us-east-1}}, groups: {t: {machine: p4d.24xlarge, capacity: {kind: block, id: cr-0}}}", False),
        ("azure, region: eastus}}, groups: {t: {machine: Standard_ND96asr_v4, capacity: {kind: spot}}}", False),
        ("tencent, region: ap-x}}, groups: {t: {machine: GN10Xp.20XLARGE320, capacity: {kind: spot}}}", False),
        (
            "alicloud, region: cn-shanghai}}, groups: {t: {machine: ecs.gn7-c13g1.26xlarge, capacity: {kind: spot}}}",
            False,
        ),
    ],
)
def test_a_hook_that_nobody_would_run_is_refused(tmp_path: Any, site_and_group: str, refused: bool) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("{name: a, hooks: {interrupted: 'true'}, sites: {v: {provider: " + site_and_group + "}\n")
    expected_messages = (
        [] if not refused else ["no machine of this file announces to its node that it will be taken away"]
    )
    try:
        spec.load(file)
        messages = []
    except InputError as error:
        messages = [problem.message for problem in error.problems]
    assert messages == expected_messages


def test_the_digest_is_of_the_file_that_the_role_writes() -> None:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", hooks={"interrupted": HOOK}))
    assert len(interruption.digest(plan)) == 64
    assert interruption.digest(plans.plan(plans.cluster_spec("p4d.24xlarge"))) == ""
