"""ansible-runner's worker on a node, from the archive beside it (configure/node_archive.py): the stream of `transmit`
on standard input, events as lines of JSON on standard output.

Events leave out what nobody reads, and artifacts stay here: a node writes no file on the control machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
READ = ("changed", "failed", "msg", "stderr", "results")
"""Keys of a result that configure/worker.py reads."""


def reduced(event: dict[str, Any]) -> dict[str, Any]:
    """The event without what a task that went well returned."""
    data = event.get("event_data")
    if not isinstance(data, dict) or event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
        return event
    result = data.get("res")
    if isinstance(result, dict):
        retained = {key: result[key] for key in READ if key in result and key != "results"}
        data = {**data, "res": retained}
    keys = ("play", "task", "task_action", "role", "host", "res", "ignore_errors", "start", "end", "duration")
    return {**event, "event_data": {key: data[key] for key in keys if key in data}}


def main() -> int:
    """Run the stream's request. 0: the node is as the roles want it; 2: Ansible says another thing; 4: it did not
    run."""
    sys.path.insert(0, str(ROOT / "lib"))
    from ansible_runner.streaming import Worker

    class NodeWorker(Worker):  # type: ignore[misc]
        """As ansible-runner's, with fewer bytes."""

        def event_handler(self, event_data: dict[str, Any]) -> bool:
            super().event_handler(event_data if keeps_events else reduced(event_data))
            return False

        def artifacts_handler(self, artifact_dir: str) -> None:
            """Nothing is sent."""

    folder, keeps_events = sys.argv[1], sys.argv[2] == "whole"
    status, rc = NodeWorker(private_data_dir=folder, settings={"suppress_output_file": True}).run()
    return 0 if status == "successful" else 2 if rc in (2, 4) else 4


if __name__ == "__main__":
    sys.exit(main())
