#!/usr/bin/env python3
"""Write gpuprov's probe as one Python program, for a machine that ssh does not reach from here: one behind a console, a
rented GPU, a pod of somebody's cluster.

    python scripts/probe_program.py probe.py                                       # looks, and starts nothing
    python scripts/probe_program.py probe.py --machine p5.48xlarge --level stress  # loads the GPUs, too

On the machine, as root, with Python 3.8 or newer and nothing else:

    python3 probe.py > answer.txt

and with the answer here again:

    gpuprov verify --bundle answer.txt --machine p5.48xlarge --level stress
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import write_whole
from provisioner.common.text import counted
from provisioner.spec.machine_types import extended
from provisioner.transport import root_python
from provisioner.verify.collect import probe_source
from provisioner.verify.expectations import expect
from provisioner.verify.request import ProbeRequest, single_request, unknown_machine_request


def request(machine: str | None, machines: Path | None, level: str, python: str | None) -> ProbeRequest:
    """What is asked. Raises GpuprovError for a type that nobody knows, SystemExit for a level that needs one."""
    catalog = extended(load(), machines)
    if machine is None:
        if level != "quick":
            raise SystemExit(f"--level {level} needs --machine: a type of `gpuprov catalog`, or of --machines")
        return unknown_machine_request()
    row = catalog.machine(machine)
    expected = expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level=level)  # type: ignore[arg-type]
    probe_request = single_request(expected)
    if probe_request.load is None:
        return probe_request
    return replace(probe_request, load={**probe_request.load, "python": python})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write gpuprov's probe as one Python program.")
    parser.add_argument("program", type=Path, help="the file to write")
    parser.add_argument("--machine", help="the machine type of the catalogue, or of --machines")
    parser.add_argument("--machines", type=Path, help="a file with machine types, as in cluster.yaml")
    parser.add_argument("--level", choices=("quick", "standard", "stress"), default="quick")
    parser.add_argument("--python", help="the Python on the machine that has PyTorch; by default its python3")
    options = parser.parse_args(arguments)
    try:
        probe_request = request(options.machine, options.machines, options.level, options.python)
    except GpuprovError as error:
        raise SystemExit(str(error)) from None
    write_whole(options.program, root_python.text_of(probe_source(), probe_request.to_json()).encode())
    minutes = math.ceil(probe_request.deadline / 60)
    print(f"{options.program}: run it as root; it takes at most {counted(minutes, 'minute')}", file=sys.stderr)


if __name__ == "__main__":
    main()
