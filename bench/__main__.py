"""`python -m bench`: measure the promises, print them, keep them. Exit status 1 where one is missed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bench import imaging, judging, rendering, scaling, solving, starting, upping, verifying, watching
from bench.measure import Failed
from bench.promises import Promise, table

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs/design/bench.md"
BEGIN, END = "<!-- begin: the latest table, written by `python -m bench --docs` -->", "<!-- end -->"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="repetitions of what is quick (default 5)")
    parser.add_argument("--cold", action="store_true", help="also `up` with nothing cached: minutes, and downloads")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/design/bench.md")
    parser.add_argument("--nodes", type=int, default=scaling.MANY, help="nodes of scale's larger fleet (default 16)")
    names = ["start", "render", "solve", "judge", "verify", "up", "image", "watch", "scale"]
    parser.add_argument("--only", choices=names, action="append", help="only this part")
    chosen = parser.parse_args(arguments)
    parts: dict[str, Callable[[], list[Promise]]] = {
        "start": lambda: starting.measure(chosen.runs * 2),
        "render": lambda: rendering.measure(chosen.runs),
        "solve": lambda: solving.measure(chosen.runs),
        "judge": lambda: judging.measure(max(1, chosen.runs // 2)),
        "verify": lambda: verifying.measure(chosen.runs),
        "up": lambda: upping.measure(cold=chosen.cold, reruns=max(1, chosen.runs // 2)),
        "image": lambda: imaging.measure(max(1, chosen.runs // 2)),
        "watch": watching.measure,
        "scale": lambda: scaling.measure(chosen.nodes),
    }
    began, promises, failed = datetime.now(UTC), [], []
    machine = {"cores": os.cpu_count(), "load_before": os.getloadavg(), "python": platform.python_version()}
    for name, measure in parts.items():
        if chosen.only and name not in chosen.only:
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            promises += measure()
        except Failed as error:
            failed.append(f"{name}: {error}")
            print(failed[-1], file=sys.stderr)
    machine["load_after"] = os.getloadavg()
    text = _described(began, machine) + "\n\n" + table(promises)
    text += "".join(f"\n\nNot measured: {line.splitlines()[0]}" for line in failed)
    print(text)
    _keep(began, machine, promises, failed)
    if chosen.docs:
        _write_docs(text)
    return 0 if promises and not failed and all(p.kept for p in promises) else 1


def _described(began: datetime, machine: dict[str, object]) -> str:
    load_before, load_after = (", ".join(f"{x:.1f}" for x in machine[key]) for key in ("load_before", "load_after"))  # type: ignore[attr-defined]
    return (
        f"{began:%Y-%m-%d %H:%M} UTC, {machine['cores']} cores, Python {machine['python']}; "
        f"load (1, 5, 15 min) {load_before} before and {load_after} after."
    )


def _keep(began: datetime, machine: dict[str, object], promises: list[Promise], failed: list[str]) -> None:
    document = {"began": began.isoformat(), "machine": machine, "promises": [p.to_json() for p in promises]}
    file = HERE / "results" / f"{began:%Y%m%dT%H%M%S}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**document, "not_measured": failed}, indent=1) + "\n")
    print(f"\nall numbers: {file}", file=sys.stderr)


def _write_docs(text: str) -> None:
    head, _, tail = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail.partition(END)[2]}")


if __name__ == "__main__":
    sys.exit(main())
