"""File systems that all nodes of a site share: what the module is told, what nobody should learn afterwards, and
whether the buckets are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.preflight import Finding
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.findings import unknown
from provisioner.providers.aws.site import AwsBucket, AwsFsx, AwsSite
from provisioner.providers.trouble import Trouble

PRICES = {
    "EFS": ("stored and read", "https://aws.amazon.com/efs/pricing/"),
    "FSx for Lustre": ("held, used or not", "https://aws.amazon.com/fsx/lustre/pricing/"),
}
S3_PRICE = "https://aws.amazon.com/s3/pricing/"
USUAL = {"PERSISTENT_2": 250, "PERSISTENT_1": 200}
"""MB/s per TiB where cluster.yaml says nothing."""


def inputs(place: AwsSite) -> dict[str, Any]:
    """The module's `efs`, `fsx` and `s3`; none of those that are not asked for."""
    storage = place.storage
    found: dict[str, Any] = {"efs": storage.efs.model_dump()} if storage.efs else {}
    if storage.fsx is not None:
        found["fsx"] = storage.fsx.model_dump() | {"throughput": _throughput(storage.fsx)}
    if storage.s3:
        found["s3"] = [one.model_dump() for one in storage.s3]
    return found


def _throughput(fsx: AwsFsx) -> int:
    return fsx.throughput or USUAL.get(fsx.deployment, 200)


def findings(place: AwsSite) -> list[Finding]:
    """What is said each time, of what is made and of what it costs."""
    storage, found = place.storage, []
    made = {"EFS": storage.efs, "FSx for Lustre": storage.fsx}
    for name, one in made.items():
        if one is not None:
            what, page = PRICES[name]
            said = (
                f"`gpuprov down` removes the {name} file system at {one.path} with its data; its price goes by what is "
                f"{what}, and is in no figure here"
            )
            found.append(Finding("warning", "storage", said, f"keep a copy of what has to stay; prices: {page}"))
    if storage.s3:
        said = "what nodes ask of buckets, and what they store there, is paid by itself and is in no figure here"
        found.append(Finding("warning", "storage", said, f"prices: {S3_PRICE}"))
    return found


def buckets(region: Region, place: AwsSite) -> Iterator[Finding]:
    """Whether each bucket is there. Nodes ask with a role of their own, so that a refusal here is unknown."""
    for one in {one.bucket: one for one in place.storage.s3}.values():
        yield _bucket(region, place, one)


def _bucket(region: Region, place: AwsSite, one: AwsBucket) -> Finding:
    subject = f"bucket {one.bucket}"
    try:
        said = region.ask("s3", "head_bucket", Bucket=one.bucket)
    except Trouble as trouble:
        if trouble.code in ("404", "NoSuchBucket"):  # S3 answers this question without a body, by its status alone
            hint = "make it, or name another one in sites.*.storage.s3"
            return Finding("blocks", subject, "there is no such bucket", hint)
        if trouble.code == "403":
            trouble = Trouble("denied", "S3 answers 403")
        return unknown(subject, trouble, "s3:ListBucket, or look yourself whether the account has it")
    where = str(said.get("BucketRegion") or place.region)
    if where != place.region:
        told = f"it is in {where}, and the nodes are in {place.region}: what they read is slower, and paid as traffic"
        return Finding("warning", subject, told, f"copy what is read often to a bucket in {place.region}")
    return Finding("ok", subject, "is there")
