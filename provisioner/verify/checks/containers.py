"""Container images: there, by digest, and running what the lock says."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import NO_LOCK, check, fail, saw, skip, unknown
from provisioner.verify.checks.unread import end_unread
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.images import tag


@check(
    "container.image",
    severity="fatal",
    documented="OCI image specification: content is named by its digest; cluster.lock names it",
    action="reconfigure",
    needs=("container-images.json",),
    applies=lambda e: e.images,
    otherwise="no lock names an image",
    lock="the digest that an image has to have is the lock's",
    says="A pinned image is not on the node, or its tag stands for other content. `gpuprov up` pulls it by digest.",
)
def test_image(node: Facts, expected: Expected) -> None:
    assert node.images is not None
    digests = {digest for image in node.images for digest in image.digests}
    saw(
        expected={image["reference"]: image["digest"] for image in expected.images or ()},
        actual=sorted(digests) or "none",
    )
    for image in expected.images or ():
        by_tag = [local for local in node.images if tag(image["reference"]) in map(tag, local.tags)]
        other = [local for local in by_tag if image["digest"] not in local.digests]
        if other:
            fail(f"{image['reference']} is {', '.join(other[0].digests) or other[0].id}, locked {image['digest']}")
        if image["digest"] not in digests:
            fail(f"{image['reference']} ({image['digest']}) is not on the node")


@check(
    "framework.versions",
    severity="fatal",
    documented="docs.pytorch.org torch.__version__, torch.cuda.device_count(); cluster.lock",
    action="reconfigure",
    vendor="any",
    reads=("framework.json",),
    level="standard",
    follows=("container.image", "driver.responds", "driver.version", "nvswitch.fabric", "gpu.count"),
    lock="the versions are those of its images",
    without_lock="an image that sees another number of GPUs than the driver warns",
    says="The image's Python does not have the versions of the lock, or does not see the GPUs.",
)
def test_versions(node: Facts, expected: Expected) -> None:
    if node.frameworks is None:
        end_unread(node, "framework.json", skips=None if expected.images else "no lock names an image")
    if not expected.images:
        _sees_all_gpus(node)
        return
    reports = {report.reference: report for report in node.frameworks}
    present = node.gpus_present if node.gpus_present is not None else expected.gpu_count
    locked_versions: dict[str, dict[str, object]] = {}
    reported_versions: dict[str, dict[str, object]] = {}
    wrong, silent = [], []
    for image in expected.images or ():
        locked = {key: image[key] for key in ("torch", "cuda", "nccl", "python") if image.get(key)}
        if not locked:
            continue
        report = reports.get(image["reference"]) or (reports.get(None) if len(expected.images or ()) == 1 else None)
        if report is None:
            silent.append(f"{image['reference']}: no report")
            continue
        locked_versions[image["reference"]] = dict(locked)
        reported_versions[image["reference"]] = {key: getattr(report, key) for key in locked}
        if report.error:
            silent.append(f"{image['reference']}: {report.error}")
            continue
        for key, version in locked.items():
            value = getattr(report, key)
            if value is None:
                silent.append(f"{image['reference']}: no {key} version reported")
            elif not _same(str(version), value):
                wrong.append(f"{image['reference']}: {key} {value}, locked {version}")
        if report.gpus is not None and report.gpus != present:
            wrong.append(f"{image['reference']}: torch sees {counted(report.gpus, 'GPU')} of {present}")
    saw(expected=locked_versions, actual=reported_versions)
    if wrong:
        fail("; ".join(wrong))
    if silent:
        unknown("; ".join(silent))
    if not locked_versions:
        skip("no locked image has a framework with a known version")


def _sees_all_gpus(node: Facts) -> None:
    """Without a lock no version is right or wrong; an image that sees other GPUs than the driver does is wrong."""
    present, reports = node.gpus_present, [r for r in node.frameworks or () if r.gpus is not None]
    saw(expected=present, actual={r.reference or "an image": r.gpus for r in reports})
    if present is None or not reports:
        skip("no lock names an image, and no report says how many GPUs it sees")
    for report in reports:
        if report.gpus != present:
            message = f"{report.reference or 'an image'}: torch sees {counted(report.gpus or 0, 'GPU')} of {present}"
            fail(message, unverified=(NO_LOCK,))


def _same(locked: str, version: str) -> bool:
    """2.9 is said by 2.9.0 and by 2.9.0+cu130; NGC's pre-releases carry a suffix such as 2.9.0a0+50eac811a6."""
    parts, have = locked.split("+", maxsplit=1)[0].split("."), version.split("+", maxsplit=1)[0].split(".")
    return have[: len(parts)] == parts or version == locked
