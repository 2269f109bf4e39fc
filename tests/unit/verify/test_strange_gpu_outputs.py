"""The same for NVIDIA's own tools: nvidia-smi, its matrix and its NVLinks, dcgmi."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from provisioner.verify.parsers import (
    Unreadable,
    dcgmi_diag,
    nvidia_smi,
    nvidia_smi_xml,
    nvlink,
    nvlink_errors,
    topo,
)
from tests.support.healthy_bundle import healthy


def test_a_matrix_whose_header_was_wrapped() -> None:
    text = "\tGPU0\nGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tNV18\t X \t0-55\n"
    with pytest.raises(Unreadable, match="GPU1"):
        topo.parse(text)


def test_a_matrix_without_nvlink_accuses_no_link() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-55\nGPU1\t{0}\t X \t0-55\n\nLegend:\n\n  X    = Self\n"
    mp, m = head + "  PIX  = Connection\n", head + "  PIX  = Connection\n  NV#  = Connection\n"
    assert topo.parse(mp.format("NODE")).cells["GPU0"]["GPU1"] is None
    for text in (m, head):  # the second lost the end of its legend
        assert topo.parse(text.format("NODE")).cells["GPU0"]["GPU1"] == "NODE"
    assert topo.parse(mp.format("NV18")).cells["GPU0"]["GPU1"] == "NV18"


def test_a_matrix_of_peers_is_not_one_of_paths() -> None:
    with pytest.raises(Unreadable, match="topo -p2p"):
        topo.parse(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n")


# nvidia-smi of branches 470, 535, 550 and 580, where a GPU has been lost
@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU 0000:44:00.0: GPU is lost.  Reboot the system",
        "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:44:00.0: Not Found",
        "Unable to determine the device handle for gpu 00000000:44:00.0: Unknown Error",
    ],
)
def test_a_gpu_that_cannot_be_opened_leaves_a_gap(line: str) -> None:
    gpus = "".join(
        f'<gpu id="00000000:{bus}:00.0"><product_name>A4000</product_name></gpu>' for bus in ("19", "5F", "9B")
    )
    smi = nvidia_smi.parse(f"{line}\n<nvidia_smi_log><attached_gpus>4</attached_gpus>{gpus}</nvidia_smi_log>\n")
    assert smi.unreachable == ("0000:44:00",)
    assert [gpu.index for gpu in smi.gpus] == [0, 2, 3]
    assert smi.warnings == ()
    assert nvidia_smi.parse(line).unreachable == ("0000:44:00",)


def test_what_nvidia_smi_says_on_standard_error_beside_its_answer() -> None:
    # driver 570: exit status 0, the GPUs that answer on standard output
    stderr = (
        "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded\n"
        "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error\n"
        "WARNING: infoROM is corrupted at gpu 0000:5F:00.0\n"
    )
    gpus = "".join(f'<gpu id="00000000:{bus}:00.0"></gpu>' for bus in ("19", "5F"))
    text = f"<nvidia_smi_log>{gpus}</nvidia_smi_log>"
    smi = read(Bundle({"nvidia-smi.xml": Output(text, rc=0, error=stderr)})).smi
    assert smi is not None
    assert (smi.unreachable, [gpu.index for gpu in smi.gpus]) == (("0000:44:00",), [0, 2])
    assert smi.warnings == ("WARNING: infoROM is corrupted at gpu 0000:5F:00.0",)


def test_a_gpu_that_cannot_be_opened_and_has_no_address() -> None:
    line = "Unable to determine the device handle for GPU2: Unknown Error\n"
    gpus = "".join(f'<gpu id="00000000:{bus}:00.0"></gpu>' for bus in ("19", "44", "9B"))
    smi = nvidia_smi.parse(f"{line}<nvidia_smi_log>{gpus}</nvidia_smi_log>")
    assert (smi.unreachable, [gpu.index for gpu in smi.gpus]) == (("GPU 2",), [0, 1, 3])
    assert smi.warnings == ()


def test_a_value_that_says_reset_counts_in_any_column() -> None:
    # of a list without its header, and of a column that nobody reads
    rows = "1, 00000000:17:00.0, Quadro RTX 5000, 10864, [N/A], [GPU requires reset], [N/A]\n"
    head = "index, pci.bus_id, name, memory.used, utilization.gpu [%], pstate, power.draw\n"
    for text in (rows, head + rows):
        assert [gpu.reset_required for gpu in nvidia_smi.parse(text).gpus] == [True]


def test_rows_with_a_number_alone_may_have_been_asked_for() -> None:
    head = "index, temperature.gpu, memory.used [MiB]\n"
    assert not nvidia_smi.parse(f"{head}0, 31, 0 MiB\n1, 30, 0 MiB\n").excerpt
    assert nvidia_smi.parse(f"{head}3, 31, 0 MiB\n").excerpt


def test_a_link_with_an_error_in_its_states_place() -> None:
    text = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n\t Link 1: {}\n"
    for down in ("<inactive>", "Inactive", "inActive", "Down", "0 GB/s"):
        links = nvlink.parse(text.format(down))[0]
        assert (links.active, links.inactive) == (1, 1)
    for strange in ("[Unknown Error]", "N/A", "ERR!"):
        links = nvlink.parse(text.format(strange))[0]
        assert (links.active, links.inactive) == (None, None)
        assert strange in links.note


def diagnosis(**body: object) -> str:
    return json.dumps({"DCGM Diagnostic": body, "metadata": {"version": "4.4.2"}})


def test_dcgmi_whose_diagnosis_did_not_begin() -> None:
    # DCGM 4: keys of a run that hostengine refused
    with pytest.raises(Unreadable, match="Unable to connect"):
        dcgmi_diag.parse(diagnosis(version="4.4.2", runtime_error="Error: Unable to connect to the host engine"))


def test_dcgmi_sums_a_test_up_apart_from_its_entities() -> None:
    # DCGM 4.1 to 4.5
    tests = [
        {"name": "memory", "results": [], "test_summary": {"status": "Skip"}},
        {"name": "software", "results": [{"entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Fail"}},
        {"name": "pcie", "results": [{"entity_id": 0, "status": "Pass"}], "test_summary": {"status": "Pass"}},
    ]
    parsed = dcgmi_diag.parse(diagnosis(test_categories=[{"category": "Hardware", "tests": tests}]))
    assert (parsed.passed, parsed.failed, parsed.skipped) == (("pcie",), ("software",), ("memory",))


def test_dcgmi_of_several_iterations() -> None:
    runs = [
        {"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"name": "Inforom", "results": [{"status": s}]}]}]}}
        for s in ("PASS", "FAIL")
    ]
    parsed = dcgmi_diag.parse(json.dumps({"iterations": runs, "Overall Result": "Fail"}))
    assert (parsed.passed, parsed.failed) == (("Inforom",), ("Inforom",))


def test_dcgmi_of_old_releases_warns_in_one_text() -> None:
    # DCGM 2
    row = {"status": "Warn", "warnings": "Persistence mode for GPU 0 is disabled."}
    tests = [{"name": "Persistence Mode", "results": [row]}]
    parsed = dcgmi_diag.parse(json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"tests": tests}]}}))
    assert parsed.messages == ("Persistence mode for GPU 0 is disabled.",)


# nvidia-smi nvlink -e of a B300, driver 595.91, healthy at boot
B300 = """\
GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-0)
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 0
\t Link 0: Rx remote Errors: 0
\t Link 0: Rx General Errors: 0
\t Link 0: Local link integrity Errors: 0
\t Link 0: Tx discards: 0
\t Link 0: Link recovery successful events: 0
\t Link 0: Link recovery failed events: 0
\t Link 0: Total link recovery events: 0
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 0
\t Link 0: Symbol BER: 15e-255
\t Link 0: FEC Errors - 0: 36140749276
\t Link 0: FEC Errors - 1: 12
\t Link 0: Raw BER Lane 0: 2061
\t Link 0: Raw Errors Lane 0: 82
"""


def test_counters_of_nvlink_5() -> None:
    counters = nvlink_errors.parse(B300)[0][0]
    assert {name: count for name, count in counters.items() if count} == {
        "fec - 0": 36140749276,
        "fec - 1": 12,
        "raw ber lane 0": 2061,
        "raw lane 0": 82,
    }
    assert {"rx", "rx remote", "rx general", "local link integrity", "symbol", "effective"} <= set(counters)
    assert "effective ber" not in counters


# nvidia-smi topo -m of 8 x B200, two rows of it, as it came through a terminal; names of Linux's own scheme for cards
@pytest.mark.parametrize("names", ["NIC10\tNIC11NIC12", "NIC10NIC11NIC12", "ibp26s0\trocep68s0\trdmap79s0"])
def test_columns_of_a_matrix(names: str) -> None:
    text = (
        f"\tGPU0\tGPU1\t{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\tSYS\tPIX\tNODE\t0-15\t0\t\tN/A\nGPU1\tNV18\t X \tPIX\tSYS\tNODE\t0-15\t0\t\tN/A\n"
    )
    topology = topo.parse(text)
    assert topology.cells == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert [list(row.values()) for row in topology.near.values()] == [["SYS", "PIX", "NODE"], ["PIX", "SYS", "NODE"]]
    assert topology.numa == {"GPU0": "0", "GPU1": "0"}


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parent / "captures" / "nvidia_smi").glob("*.xml")), ids=lambda file: file.stem
)
def test_both_readers_of_the_document_see_the_same(file: Path) -> None:
    text = file.read_text(encoding="utf-8", errors="replace")
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        pytest.skip("it was cut")
    document = text[start : end + len("</nvidia_smi_log>")]
    if not compare_readers(document):
        unusual = ("&", "<!--", "<gpu>", "/>")
        assert not document.isascii() or any(part in document for part in unusual)


def compare_readers(document: str) -> bool:
    """Whether the fast reader takes the document; it sees what expat sees then."""
    fast = nvidia_smi_xml.read_by_outline(document)
    if fast is None:
        return False
    walked = nvidia_smi_xml.walk(ElementTree.fromstring(nvidia_smi_xml.BETWEEN.sub("><", document)))

    def contents(element: nvidia_smi_xml.Walked) -> object:
        return element.id or None, element.paths, [(value or "").strip() for value in element.values]

    assert [contents(element) for element in (fast.top, *fast.gpus)] == [
        contents(element) for element in (walked.top, *walked.gpus)
    ]
    assert sorted(element.strip() for element in fast.stray) == sorted(element.strip() for element in walked.stray)
    return True


PIECES = (
    *("<gpu>", "</gpu>", '<gpu id="x">', "<a/>", "<a>", "</a>", "<a>1</a>", "text", " > ", "<gpu/>", "<gpu id='1'>"),
    *("", '<gpu id="">', "</gpu >", "]]>", "<?x y?>", "</gpu\n>", "<nvidia_smi_log>"),
    '<b><gpu id="1"><c>1</c></gpu></b>',
)


def test_of_a_damaged_document_both_readers_see_the_same() -> None:
    document = str(healthy("p4d.24xlarge")["nvidia-smi.xml"])
    document = document[document.index("<nvidia_smi_log") :]
    gpus = re.findall(r"<gpu id.*?</gpu>", document, re.DOTALL)[:2]
    small = document[: document.index("<gpu id")] + "".join(gpus) + document[document.rindex("</gpu>") + 6 :]
    small = re.sub(r"<supported_clocks>.*?</supported_clocks>", "", small, flags=re.DOTALL)
    all_tokens, taken = re.findall(r"<[^>]*>|[^<]+", small), 0
    for seed in range(600):
        chance, tokens = random.Random(seed), list(all_tokens)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            first = chance.randrange(len(tokens))
            last = min(len(tokens), first + chance.choice((1, 1, 2, 5, 40)))
            change = chance.randrange(5)
            if change == 0:
                del tokens[first:last]
            elif change == 1:
                tokens[first:first] = tokens[first:last]
            elif change == 2:
                tokens[first] = chance.choice(PIECES)
            elif change == 3:
                tokens.insert(first, chance.choice(PIECES))
            else:
                tokens[first] = tokens[first][: len(tokens[first]) // 2]
        taken += compare_readers("".join(tokens))
    assert 60 < taken < 540


UNUSUAL = (
    *("<a>1</b>", "<a>1</a></b>", "<a b='1'>1</a>", "<a>1", "<!-- x --><a>1</a>", "<a>&lt;</a>", "<a>\x01</a>"),
    *(
        "<1>1</1>",
        "</gpu><gpu><y>2</y>",
        '</gpu><gpu id="2" x="3"><y>2</y>',
        "<a>\u00b5</a>",
        "<![CDATA[1]]>",
        "< a>1</ a>",
    ),
)


@pytest.mark.parametrize("inside", UNUSUAL)
def test_what_is_unusual_is_left_to_expat(inside: str) -> None:
    document = f'<nvidia_smi_log><x>1</x><gpu id="1"><y>1</y>{inside}</gpu></nvidia_smi_log>'
    assert nvidia_smi_xml.read_by_outline(document) is None
