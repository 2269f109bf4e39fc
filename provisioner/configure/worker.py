"""The process that ansible-runner runs in: request as JSON on stdin, one JSON object per event on stdout. With
`keep_events` in the request the artifacts have a file for every event, else for those of failures alone.

A process of its own, because ansible-runner owns signals and the current directory while it runs, and so that it can
be ended with everything it started.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

KINDS = {
    "runner_on_start": "start",
    "runner_on_ok": "ok",
    "runner_on_skipped": "skipped",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_retry": "retry",
    "error": "error",
}
FAILURES = ("failed", "unreachable", "error")
MESSAGE_LIMIT = 2000
"""Characters of a module's message that are passed on."""


def record(event: dict[str, Any]) -> dict[str, Any] | None:
    """ansible-runner's event → ours, or None for one that nobody reads."""
    kind = KINDS.get(event.get("event", ""))
    if kind is None:
        return None
    data = event.get("event_data", {})
    result = data.get("res") or {}
    if kind == "failed" and data.get("ignore_errors"):
        kind = "ok"
    return {
        "event": kind,
        "host": data.get("host"),
        "task": " : ".join(part for part in (data.get("role"), data.get("task")) if part),
        "changed": bool(result.get("changed")),
        "message": "" if kind in ("start", "ok", "skipped") else _message(result, event),
    }


def _message(result: dict[str, Any], event: dict[str, Any]) -> str:
    """What the module said: of a loop, the items that failed; of a command, its error output."""
    for item in result.get("results") or []:
        if isinstance(item, dict) and item.get("failed"):
            return _message(item, event)
    parts = [str(result.get("msg") or ""), str(result.get("stderr") or "")]
    text = " ".join(" ".join(part.split()) for part in parts if part)
    return (text or " ".join(str(event.get("stdout", "")).split()))[:MESSAGE_LIMIT]


def main() -> int:
    """Run the request. 0: all nodes ok; 2: a node failed; 4: Ansible could not run."""
    import ansible_runner

    request = json.load(sys.stdin)
    keep_events = request.pop("keep_events")
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    def emit(event: dict[str, Any]) -> bool:
        line = record(event)
        if line is not None:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        return keep_events or (line is not None and line["event"] in FAILURES)

    runner = ansible_runner.run(
        **request,
        quiet=True,
        suppress_env_files=True,
        event_handler=emit,
        cancel_callback=lambda: stopping,
    )
    return 0 if runner.rc == 0 else 2 if runner.rc in (2, 4) else 4


if __name__ == "__main__":
    sys.exit(main())
