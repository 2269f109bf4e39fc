"""gpuprov size: what a person reads, the document, and errors for wrong options."""

from __future__ import annotations

import json

import pytest

from provisioner.cli.main import run
from provisioner.output.size import SizeOutput


def test_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--params", "13B", "--tokens", "300B", "--deadline", "14d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "13B parameters, 300B tokens, sequence 4096, bf16, micro-batch 1, in 14 days"
    assert lines[1].startswith("assumed: the shape is that of mpt-13b")
    (row,) = [line for line in lines if line.startswith("p5.48xlarge")]
    assert "ZeRO-2" in row and "USD  us-east-1" in row
    assert any(line.startswith("left out: days are unknown") for line in lines)
    assert lines[-1].startswith("not included: fragmentation")


def test_one_machine_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["size", "--model", "llama3-8b", "--tokens", "1T", "--seq", "8192", "--gpus", "256"]
    assert run([*arguments, "--machine", "p5.48xlarge", "--write-rate", "20"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "llama3-8b: 8.03B parameters",
        "p5.48xlarge: 32 machines, 256 × H100-SXM5-80GB (aws)",
        "weights",
        "TP 2 × PP 1",
        "MFU ",
        "checkpoint every:",
        "gpuprov cost --machine p5.48xlarge",
        "github mosaicml/llm-foundry",
        "unknown: rate on more than 32 GPUs",
    ):
        assert expected in text


def test_what_is_unknown_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--params", "1B", "--tokens", "20B", "--machine", "g5.12xlarge", "--gpus", "4"]) == 0
    text = capsys.readouterr().out
    assert "days:                  unknown" in text
    assert "unknown: days: no published training throughput of A10G in bf16" in text
    assert "list price:            unknown (" in text


def test_tiny_amounts_stay_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--params", "100M", "--tokens", "1M", "--seq", "128", "--deadline", "1h"]) == 0
    text = capsys.readouterr().out
    assert ", in 0.0417 days" in text and "<0.001" in text and "e-0" not in text


def test_no_machine_has_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--params", "10T", "--tokens", "1T", "--gpus", "8"]) == 0
    assert "no machine type of the catalogue has an answer" in capsys.readouterr().out


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--params", "7B", "--tokens", "1T", "--machine", "p4d.24xlarge", "--json"]) == 0
    document = SizeOutput.model_validate(json.loads(capsys.readouterr().out))
    assert document.machines[0].machine == "p4d.24xlarge"
    assert document.deadline is None
    assert {source.split(",")[0] for source in document.sources} == {"Llama 3 405B", "RSC-1", "RSC-2"}


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--tokens", "1B"], "pass either --params or --model", "gpuprov size --params 13B --tokens 300B"),
        (["--params", "13B", "--model", "mpt-7b", "--tokens", "1B"], "pass either --params or --model", ""),
        (["--params", "13B"], "--tokens is missing", "--tokens 300B"),
        (["--params", "13X", "--tokens", "1B"], "--params 13X: X is not a unit", "--params 13B"),
        (["--params=-13B", "--tokens", "1B"], "--params -13B: the number is negative", "--params 13B"),
        (["--params", "900T", "--tokens", "1B"], "--params 900T is outside 100M to 10T", "--params 13B"),
        (["--params", "13B", "--tokens", "3"], "--tokens 3 is outside 1M to 100T", "--tokens 300B"),
        (["--params", "13B", "--tokens", "1B", "--seq", "4"], "--seq 4 is outside 128 to 1,048,576", "--seq 4096"),
        (["--params", "13B", "--tokens", "1B", "--gpus", "0"], "--gpus 0 is outside 1 to 131,072", "--gpus 64"),
        (["--params", "13B", "--tokens", "1B", "--micro-batch", "0"], "--micro-batch 0 is outside", "--micro-batch 1"),
        (["--params", "13B", "--tokens", "1B", "--write-rate=-1"], "--write-rate -1.0 is outside", "--write-rate 20"),
        (["--params", "13B", "--tokens", "1B", "--deadline", "14"], "--deadline 14: the unit is missing", "14d"),
        (["--params", "13B", "--tokens", "1B", "--deadline", "1d", "--gpus", "8"], "exclude each other", "--deadline"),
        (
            ["--params", "13B", "--tokens", "1B", "--region", "moon"],
            "--region moon: the catalogue has no list price",
            "such as ",
        ),
        (["--model", "llama3-9b", "--tokens", "1B"], "--model llama3-9b: the shape of this model", "llama3-8b"),
        (["--params", "13B", "--tokens", "1B", "--machine", "p4"], "no machine 'p4' in the catalogue", ""),
        (
            ["--params", "13B", "--tokens", "1B", "--machine", "p5.48xlarge", "--gpus", "12"],
            "--gpus 12 is not a multiple of the 8 GPUs of p5.48xlarge",
            "--gpus 8",
        ),
    ],
)
def test_wrong_options(arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and hint in error
