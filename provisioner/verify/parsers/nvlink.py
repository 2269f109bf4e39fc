"""`nvidia-smi nvlink -s`: which NVLinks of each GPU are up. In a bundle `dcgmi nvlink -s` is read too.

Traps: "NVLink" and "Nvlink"; "<inactive>", "inActive"; a GPU without a bridge and a dead NVSwitch fabric print the
same line ("all links are inActive"), so only the catalogue can tell which it is; MIG answers nothing;
a link can have an error in the place of its state; people leave lines out ("...", "<snip>"); dcgmi writes a letter for
each link (U up, D down, X disabled, _ not supported) and lists the switches' links below those of the GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from provisioner.verify.document import plain
from provisioner.verify.parsers import ELIDED, Unreadable, first_line, lines
from provisioner.verify.tool import Tool, further_looks, nvidia

_GPU = re.compile(r"^\s*GPU ([0-9]{1,3}): (.*?)(?: \(UUID: ([^)]*)\))?$")
_LINK = re.compile(r"^\s*Link ([0-9]{1,3}): (.+)$")
_DOWN = re.compile(r"<?(?:in-?active|down|off|disabled|not connected)>?\b|[0.]+ gb/s")
_SPEED = re.compile(r"((?=[0-9.]*[1-9])[0-9]{1,5}(?:\.[0-9]{1,6})?) gb/s")


LEFT_OUT = "lines are left out"


@dataclass(frozen=True, slots=True)
class Links:
    """Links of one GPU; None where the tool reported no value. `note` is its own reason ("MIG", "all inactive", …)."""

    active: int | None
    inactive: int | None
    note: str = ""
    speeds: tuple[float, ...] = ()
    """Of the active links in their order, GB/s in one direction."""
    model: str = ""
    """The GPU's name, where the tool prints it."""


def parse(text: str) -> dict[int, Links]:
    """GPU index → links."""
    if "NvLink Link Status" in text:
        return _dcgmi(text)
    links_by_gpu: dict[int, Links] = {}
    gpu: int | None = None
    state: dict[int, bool] = {}
    strange: str | None = None
    names: dict[int, str] = {}
    speeds: dict[int, float] = {}

    def close() -> None:
        if gpu is not None and strange is not None:
            down = sum(not up for up in state.values()) if strange == LEFT_OUT else 0
            links_by_gpu[gpu] = Links(None, down or None, note=strange)
        elif gpu is not None and state:
            up = [link for link, active in sorted(state.items()) if active]
            links_by_gpu[gpu] = Links(len(up), len(state) - len(up), speeds=tuple(speeds[link] for link in up))

    for line in lines(text):
        if match := _GPU.match(line):
            close()
            gpu, state, speeds, strange = int(match[1]), {}, {}, None
            links_by_gpu.setdefault(gpu, Links(None, None))
            names[gpu] = match[2]
        elif gpu is None:
            continue
        elif match := _LINK.match(line):
            value = match[2].strip().lower()
            # A link that was seen twice counts once, and as down if it was down once.
            link, speed = int(match[1]), _SPEED.match(value)
            if speed is None and not _DOWN.match(value):
                strange = f"link {link} is {match[2].strip()[:80]!r}"
            state[link] = state.get(link, True) and speed is not None
            speeds[link] = float(speed[1]) if speed else 0.0
        elif line.lstrip().startswith("Link") or (line.strip() and "Link".startswith(line.strip())):
            strange = f"a line ends in its midst: {first_line(line)!r}"
        elif ELIDED.fullmatch(line) and line.strip():
            strange = strange or LEFT_OUT
        elif "all links are inactive" in line.lower():
            links_by_gpu[gpu] = Links(active=0, inactive=None, note="all links are inactive")
        elif "in mig mode" in line.lower():
            links_by_gpu[gpu] = Links(None, None, note="MIG mode")
        elif "does not have or support nvlink" in line.lower():
            links_by_gpu[gpu] = Links(active=0, inactive=0, note="no NVLink")
    close()
    if not links_by_gpu:
        raise Unreadable(f"no GPU in it: {first_line(text)}")
    # Every GPU of one kind has its line for each of its links, up or down: the last one lacks some where it was cut.
    if state and gpu is not None and (last := links_by_gpu[gpu]).active is not None and last.inactive is not None:
        alike = [links_by_gpu[other] for other in names if other != gpu and names[other] == names[gpu]]
        maximum = max(
            (links.active + links.inactive for links in alike if links.active and links.inactive is not None), default=0
        )
        if last.active + last.inactive < maximum:
            links_by_gpu[gpu] = Links(
                None, None, note=f"{last.active + last.inactive} of {maximum} links are listed: it was cut"
            )
    return {gpu: replace(links, model=names[gpu]) for gpu, links in links_by_gpu.items()}


def _dcgmi(text: str) -> dict[int, Links]:
    """`dcgmi nvlink -s` (NVIDIA/DCGM dcgmi/Nvlink.cpp, DisplayNvLinkLinkStatus)."""
    links: dict[int, Links] = {}
    gpu: int | None = None
    for line in lines(text):
        if match := re.match(r"^\s*gpuId ([0-9]{1,3}):\s*$", line):
            gpu = int(match[1])
        elif gpu is not None and re.fullmatch(r"\s*[UDX_](?: [UDX_]){0,63}", line):
            states = line.split()
            links[gpu] = Links(states.count("U"), states.count("D") + states.count("X"))
            gpu = None
        elif line.strip().startswith("NvSwitches:"):
            break
    if not links:
        raise Unreadable(f"no GPU in it: {first_line(text)}")
    return links


LOOK = Tool(
    file="nvlink.txt",
    field="nvlinks",
    parse=parse,
    command=("nvidia-smi", "nvlink", "-s"),
    seconds=30,
    when=nvidia,
    merge=True,
    training=r"(?i)\bLink \d+: <?inactive|all links are inactive",
    document={"nvlinks": lambda links: {str(gpu): plain(state) for gpu, state in sorted(links.items())}},
)
TOOLS = (LOOK, *further_looks(LOOK))
