"""Pieces to a bundle: what each output is, which of several of one kind is taken, what could not be placed."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path

from provisioner.common.errors import GpuprovError
from provisioner.common.text import few
from provisioner.verify import watch
from provisioner.verify.bundle import LIMIT, STATUS, Bundle, Output
from provisioner.verify.collect import decode
from provisioner.verify.facts import read_file
from provisioner.verify.parsers.dmesg import NEXT_BOOT
from provisioner.verify.probe.runner import MARK
from provisioner.verify.support_bundle import journals, recognise, wrapped
from provisioner.verify.support_bundle.budget import SECONDS, Budget, SpentError
from provisioner.verify.support_bundle.pieces import Piece, pieces
from provisioner.verify.support_bundle.sections import BUG_REPORT, FIRST, cut
from provisioner.verify.tools import FILES

PART = re.compile(r"\|\s*(?:grep|egrep|tail|head|awk|sed)\b|\b(?:grep|tail|head) ")
"""A command that shows a part of a log."""
ONE_GPU = re.compile(r"nvidia-smi\b.* (?:-i|--id)[ =]?\S")
"""A command that lists the GPUs that it names."""
GPUS = ("nvidia-smi.xml", "rocm-smi.json")
"""Files that name the GPUs and their driver: outputs of two machines differ there."""
LATER_LOOKS = ("nvidia-smi-load.xml", "nvidia-smi-after.xml")
"""Those of them that show the same GPUs at another time, beside GPUS[0]."""
PORTS = "ibv_devinfo.txt"
BOOT = "Linux version"
"""What the kernel says first."""
GIVEN, SINCE_LATER = "the kernel log that was given", "does not reach back to the boot"
ADDITIONAL = frozenset(look.file for look in recognise.LOOK if look.is_additional)
"""Files of which a text is one beside what else it is."""
HELD = 256 * 1024 * 1024
"""Characters of recognised texts that are held at once."""


@dataclass(frozen=True, slots=True)
class Supplied:
    """A bundle, and what it was made of: (piece, file) of what was placed, (piece, why) of what was not."""

    bundle: Bundle
    placed: tuple[tuple[str, str], ...] = ()
    unplaced: tuple[tuple[str, str], ...] = ()
    told: str = ""
    """What the machine's firmware and its maker are called, wherever that stood."""

    @property
    def foreign(self) -> bool:
        """Whether anything in it had to be told by its content."""
        return bool(self.placed or self.unplaced)

    @property
    def is_unrecognised(self) -> bool:
        """Whether there are texts, and none of them is the output of a known tool."""
        return not self.bundle.files and self.foreign


@dataclass
class _Desk:
    found: dict[str, tuple[int, str, Output]] = field(default_factory=dict)
    logs: list[list[str]] = field(default_factory=list)
    placed: list[tuple[str, str]] = field(default_factory=list)
    unplaced: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    seen: dict[str, list[tuple[str, set[str], str | None]]] = field(default_factory=dict)
    """File → (piece, its GPUs' UUIDs, its driver) of each output of it."""
    part: bool = False
    whole: bool = False
    folder: bool = False
    """Whether somebody put the files together; what an archive of everything has beside texts is legion."""
    name: str = ""
    """Of the file that is the bundle, where it is one."""
    held: int = 0
    status: str = ""
    """gpuprov's probe.json."""
    answers: list[Bundle] = field(default_factory=list)
    """What gpuprov's probe said, where it ran as a program and its output was saved."""


def read(path: Path) -> Supplied:
    """The bundle in a directory or file: gpuprov's own, or one made of what people keep. Raises GpuprovError where
    there is nothing to read."""
    if not path.exists():
        raise GpuprovError("not a bundle: no such file or directory", where=str(path), hint="a directory or an archive")
    if path.resolve().is_relative_to("/proc") or path.resolve().is_relative_to("/sys"):  # reading can use it up
        raise GpuprovError(
            "not a saved output, but the kernel's file", where=str(path), hint="`gpuprov verify --host local`"
        )
    if path.is_dir() and not any(path.iterdir()):
        raise GpuprovError("the bundle is empty: there is no file in it", where=str(path),
                           hint="the directory that has what the tools printed")  # fmt: skip
    desk = _Desk()
    desk.folder, desk.name = path.is_dir(), path.name
    bundle_files = Bundle.read(path) if desk.folder else Bundle()
    if desk.folder and not (path / STATUS).exists():
        bundle_files = replace(
            bundle_files, files={name: _by_hand(name, output) for name, output in bundle_files.files.items()}
        )
        if PORTS in bundle_files.files and "ibstat.txt" not in bundle_files.files:  # it is read for the MTU alone
            bundle_files = replace(bundle_files, files={**bundle_files.files, "ibstat.txt": bundle_files.files[PORTS]})
    for output in bundle_files.files.values():
        _hear(desk, output.text)
    for name in (name for name in (*GPUS, *LATER_LOOKS) if name in bundle_files.files):
        _refuse_two_machines(desk, name, name, read_file(name, bundle_files, FILES[name].parse)[0])
    if desk.folder and _only_ours(path):
        return Supplied(bundle_files, told=_hints_text(desk))
    desk.placed += [(name, name) for name in bundle_files.files]
    try:
        with watch.limited(SECONDS):
            budget = Budget(str(path))
            for piece in pieces(path, budget):
                if not (desk.folder and _ours(piece.name)):
                    _take(desk, piece, budget)
            files = {name: output for name, (_, _, output) in desk.found.items()}
            bundle_files = _with_status(files, desk.status) if desk.status else bundle_files
            for answer in desk.answers:
                bundle_files = answer if not bundle_files.files else bundle_files.joined(answer, ())
            logs = [
                bundle_files.files[name].text
                for name in ("dmesg-before.txt", "dmesg.txt")
                if name in bundle_files.files
            ]
            if desk.logs and logs:
                desk.logs.insert(0, logs)
                desk.whole = True
            kernel_logs = _kernel_logs(desk)
    except MemoryError as error:
        raise SpentError("it needs more memory than there is", where=str(path), hint="pass less of it") from error
    except watch.TooLong as error:
        raise SpentError(
            f"it takes more than {SECONDS:.0f} s to read", where=str(path), hint="pass less of it"
        ) from error
    # of what was saved twice the one counts that shows a fault
    faults = {name: output for name, (rank, _, output) in desk.found.items() if rank < 0} if not desk.status else {}
    bundle = replace(bundle_files, files={**files, **bundle_files.files, **kernel_logs, **faults})
    return Supplied(bundle, tuple(desk.placed), tuple(desk.unplaced), _hints_text(desk))


def _by_hand(name: str, output: Output) -> Output:
    """A file that somebody has named as gpuprov names it."""
    if name == "dmesg.txt" and BOOT not in output.text:
        return replace(output, partial=f"{GIVEN} {SINCE_LATER}")
    return output


def _with_status(files: dict[str, Output], text: str) -> Bundle:
    """gpuprov's own bundle, with what probe.json says of its files."""
    try:
        document = json.loads(text)
        known = document["files"]
        entries = {name: {**entry, "text": files[name].text if name in files else ""}
                   for name, entry in known.items() if isinstance(entry, dict)}  # fmt: skip
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return Bundle()
    return Bundle.from_json({**document, "files": entries})


def _ours(name: str) -> bool:
    """Whether a file of a directory is read by its name: a bundle's own, or a BMC's saved tree."""
    return name in FILES or name == STATUS or "redfish" in name


def _only_ours(folder: Path) -> bool:
    """Whether a directory has nothing but files of a bundle (or nothing at all)."""
    return all(entry.name in (*FILES, STATUS, "checks") or "redfish" in entry.name for entry in folder.iterdir())


def _take(desk: _Desk, piece: Piece, budget: Budget) -> None:
    if piece.why:
        if piece.why != "no text" or desk.folder or piece.name == desk.name:
            desk.unplaced.append((piece.name, piece.why))
        return
    if piece.cut:
        desk.unplaced.append((piece.name, f"its end is missing ({piece.cut}): what is before it is used"))
    if not piece.text.strip() and desk.folder:
        desk.unplaced.append((piece.name, "empty"))
        return
    if answer_lines := [line for line in piece.text.splitlines() if line.startswith(MARK)]:
        for line in answer_lines:
            _take_answer(desk, piece.name, decode(line.encode()))
        return
    base = piece.name.rsplit("/", 1)[-1]
    if base == STATUS:
        desk.status = piece.text
        return
    if base in FILES:  # gpuprov's own bundle in an archive
        output = Output(piece.text[:LIMIT], truncated=len(piece.text) > LIMIT)
        if read_file(base, Bundle({base: output}), FILES[base].parse)[1].state == "read":
            _put(desk, base, 0, piece.name, output)
            return
    piece = replace(piece, text=wrapped.unwrap(piece.text.replace("\r\n", "\n")))
    for section in cut(piece):
        budget.spend(0)
        if section.text.strip():
            # A report has hundreds of sections; of a session's commands each one that is not used is told.
            alone = section is piece or not (BUG_REPORT in piece.text[:4096] or section.name.endswith(FIRST))
            _classify(desk, replace(section, cut=piece.cut), alone=alone)


def _take_answer(desk: _Desk, name: str, answer: Bundle) -> None:
    """The outputs of one run of the probe, all of which it names. What else a login has printed there is no output."""
    if answer.error:
        desk.unplaced.append((name, answer.error))
        return
    for output in answer.files.values():
        _hear(desk, output.text)
    for file in (file for file in (*GPUS, *LATER_LOOKS) if file in answer.files):
        _refuse_two_machines(desk, file, name, read_file(file, answer, FILES[file].parse)[0])
    desk.answers.append(answer)


def _flush(text: str) -> str:
    """A text that was indented as a whole, as in a page or an issue, without what it was indented by."""
    first = re.search(r"^.*\S", text[:4096], re.M)
    return textwrap.dedent(text) if first is not None and first[0][0] in " \t" else text


def _classify(desk: _Desk, piece: Piece, *, alone: bool) -> None:
    piece = replace(piece, text=_flush(piece.text))
    text = journals.text_of(piece.text) if recognise.is_journal(piece.text) else piece.text
    desk.held += len(text) if len(text) > 1024 else 0
    if desk.held > HELD:
        raise GpuprovError(f"it holds more than {HELD // 2**20} MiB of text", where=piece.name, hint="pass less of it")
    _hear(desk, text)
    is_page = recognise.is_page(text)
    kernel, other_lines = ("", text) if is_page else recognise.divided(text)
    placed, reason = _take_outputs(desk, piece, text)
    if not placed and kernel and other_lines.strip():  # among the kernel's lines
        placed, _ = _take_outputs(desk, piece, other_lines)
    if not placed and is_page:
        reason = reason or "a document, not the output of a tool"
    elif placed <= ADDITIONAL and recognise.is_kernel_log(text):
        _take_log(desk, piece, text, is_part=bool(_part(piece)))
        return
    elif kernel:
        _take_log(desk, piece, kernel, is_part=True)
    if not placed and (alone or reason):
        desk.unplaced.append((piece.name, reason or "not the output of a tool that is judged"))


def _take_outputs(desk: _Desk, piece: Piece, text: str) -> tuple[set[str], str]:
    """Files that a text, or a part of it, was taken for; why it was not taken for the likeliest."""
    reason, placed, parts = "", set[str](), dict[str, str]()
    for look in recognise.kinds(text):
        if look.file not in FILES or look.file in placed:
            continue
        # Of a text that is one tool's output another's is what follows its own head: several outputs in one file.
        is_part = not look.is_additional and not placed <= ADDITIONAL
        if is_part:
            parts = parts or recognise.parts(text)
        source_text = parts[look.file] if is_part else text
        taken = look.take(source_text) if look.take else source_text
        output = Output(taken[:LIMIT], truncated=len(taken) > LIMIT, partial=_part(piece))
        value, source = read_file(look.file, Bundle({look.file: output}), FILES[look.file].parse)
        failed = _failure(taken)
        if value is None and not failed:
            reason = reason or source.reason
            continue
        rank = look.rank + bool(getattr(value, "made_by", "")) + 10 * bool(getattr(value, "excerpt", False))
        # an older output that shows all well must not stand for one that shows a fault
        rank += 20 * is_part - 100 * (failed or _lost(value))
        if look.file in GPUS:
            _refuse_two_machines(desk, look.file, piece.name, value)
        _put(desk, look.file, rank, piece.name, output)
        placed.add(look.file)
    return placed, reason


def _take_log(desk: _Desk, piece: Piece, text: str, *, is_part: bool) -> None:
    rows = journals.kernel_rows(text)
    desk.logs.append(logs := journals.boots(rows))
    desk.placed.append((piece.name, "dmesg.txt"))
    if len(hosts := journals.hosts(rows)) > 1:
        reason = f"lines of {len(hosts)} hosts ({few(hosts, 4, ',')}) are judged together: pass those of one"
        desk.unplaced.append((piece.name, reason))
    desk.part = desk.part or is_part
    desk.whole = desk.whole or any(BOOT in log for log in logs)


def _failure(text: str) -> bool:
    from provisioner.verify.parsers.nvidia_smi import failure

    return failure(text) is not None


def _lost(value: object) -> bool:
    """Whether an output shows a GPU that does not answer."""
    gpus = getattr(value, "gpus", ()) or ()
    return bool(getattr(value, "unreachable", ())) or any(getattr(gpu, "lost", False) for gpu in gpus)


def _refuse_two_machines(desk: _Desk, file: str, name: str, value: object) -> None:
    """Raise GpuprovError where two outputs name other GPUs, or another driver: one verdict over two machines, or over
    two drivers, would be of neither."""
    uuids = {gpu.uuid for gpu in getattr(value, "gpus", ()) or () if getattr(gpu, "uuid", None)}
    driver = getattr(value, "driver_version", None)
    kind = GPUS[0] if file in LATER_LOOKS else file
    for known, theirs, their_driver in desk.seen.setdefault(kind, []):
        difference = "GPUs" if uuids and theirs and not uuids & theirs else ""
        if not difference and driver and their_driver and driver != their_driver:
            difference = f"drivers ({their_driver}, {driver})"
        if difference:
            raise GpuprovError(
                f"{known} and {name} have other {difference}: outputs of two machines, or of two times", where=name,
                hint="pass those of one machine at one time",
            )  # fmt: skip
    desk.seen[kind].append((name, uuids, driver))


def _part(piece: Piece) -> str:
    command = piece.name.rpartition(": ")[2]
    if piece.cut:
        return f"the end of {piece.name} is missing"
    return f"`{command}` shows a part of it" if PART.search(command) or ONE_GPU.search(command) else ""


def _put(desk: _Desk, file: str, rank: int, name: str, output: Output) -> None:
    """The output that tells the most is taken, of two alike the first."""
    known = desk.found.get(file)
    if known is None or rank < known[0]:
        desk.found[file] = (rank, name, output)
        desk.placed = [(piece, placed_as) for piece, placed_as in desk.placed if known is None or piece != known[1]]
        desk.placed.append((name, file))
        if known is not None:
            desk.unplaced.append((known[1], _duplicate_reason(name, file, output, known[2])))
    else:
        desk.unplaced.append((name, _duplicate_reason(known[1], file, known[2], output)))


def _duplicate_reason(name: str, file: str, taken: Output, other: Output) -> str:
    return f"{name} is the same" if taken.text == other.text else f"{name} is taken for {file}"


def _kernel_logs(desk: _Desk) -> dict[str, Output]:
    """One log of this boot, one of the boot before."""
    outputs: dict[str, Output] = {}
    current = journals.joined(logs[-1] for logs in desk.logs if logs)
    previous = _earlier_boots(desk.logs)
    part = f"{GIVEN} {'is a part of it' if desk.whole else SINCE_LATER}" if desk.part or not desk.whole else ""
    if current:
        outputs["dmesg.txt"] = Output(current[-LIMIT:], partial=part)
    if previous:
        outputs["dmesg-before.txt"] = Output(previous[-LIMIT:])
    return outputs


def _earlier_boots(logs: list[list[str]]) -> str:
    """The logs of the boots before, the oldest first, each behind the line that journalctl writes between two."""
    by_age: dict[int, list[str]] = {}
    for boots in logs:
        for age, log in enumerate(reversed(boots)):
            if 0 < age <= journals.BOOTS:
                by_age.setdefault(age, []).append(log)
    earlier = [journals.joined(by_age[age]) for age in sorted(by_age, reverse=True)]
    return "".join(f"{NEXT_BOOT}{n} --\n{log}" if n else log for n, log in enumerate(earlier))


_DMI = re.compile(r"\bDMI: ([^\n]{3,160})|^[ \t]{0,40}(?:Manufacturer|Product Name): ([^\n]{2,80})", re.M)


def _hints_text(desk: _Desk) -> str:
    return " / ".join(dict.fromkeys(desk.told))[:1000]


def _hear(desk: _Desk, text: str) -> None:
    """Who made the machine: the kernel's DMI line, dmidecode."""
    if len(desk.told) < 40 and ("DMI: " in text or "Product Name: " in text):
        desk.told += [(match[1] or match[2]).strip() for match in _DMI.finditer(text[: recognise.LOOKS])][:40]
