"""Terraform's warnings about -target are gpuprov's own doing: nobody is told of them, and of every other one."""

from __future__ import annotations

import json

from provisioner.common.events import Events
from provisioner.machines.terraform.json_log import JsonLog


def test_warnings_about_targeting_are_not_shown() -> None:
    messages: list[str] = []
    events = Events()
    events.subscribe(lambda event: messages.append(event.message))
    log = JsonLog("apply", events)
    for summary in ("Resource targeting is in effect", "Applied changes may be incomplete", "Deprecated attribute"):
        warning = {"severity": "warning", "summary": summary, "detail": "more"}
        log.read(json.dumps({"type": "diagnostic", "diagnostic": warning}))
    assert [line.split(":")[0] for line in messages] == ["Deprecated attribute"]
