"""File systems that all nodes of a site share: what the module is told, what nobody should learn afterwards, and
whether the buckets are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from provisioner.common.preflight import Finding
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import unknown
from provisioner.machines.providers.aws.settings import AwsBucket, AwsFsx
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.trouble import Trouble

PRICES = {
    "EFS": ("stored and read", "https://aws.amazon.com/efs/pricing/"),
    "FSx for Lustre": ("held, used or not", "https://aws.amazon.com/fsx/lustre/pricing/"),
}
S3_PRICE = "https://aws.amazon.com/s3/pricing/"
USUAL = {"PERSISTENT_2": 250, "PERSISTENT_1": 200}
"""MB/s per TiB where cluster.yaml says nothing."""


def inputs(site: AwsSite) -> dict[str, Any]:
    """The module's `efs`, `fsx` and `s3`; none of those that are not asked for."""
    storage = site.storage
    variables: dict[str, Any] = {"efs": storage.efs.model_dump()} if storage.efs else {}
    if storage.fsx is not None:
        variables["fsx"] = storage.fsx.model_dump() | {"throughput": _throughput(storage.fsx)}
    if storage.s3:
        variables["s3"] = [mount.model_dump() for mount in storage.s3]
    return variables


def _throughput(fsx: AwsFsx) -> int:
    return fsx.throughput or USUAL.get(fsx.deployment, 200)


def findings(site: AwsSite) -> list[Finding]:
    """What is said each time, of what is made and of what it costs."""
    storage, findings = site.storage, []
    file_systems = {"EFS": storage.efs, "FSx for Lustre": storage.fsx}
    for name, file_system in file_systems.items():
        if file_system is not None:
            basis, page = PRICES[name]
            message = (
                f"`gpuprov down` removes the {name} file system at {file_system.path} with its data; its price goes by "
                f"what is {basis}, and is in no figure here"
            )
            findings.append(Finding("warning", "storage", message, f"keep a copy of what has to stay; prices: {page}"))
    if storage.s3:
        message = "what nodes ask of buckets, and what they store there, is paid by itself and is in no figure here"
        findings.append(Finding("warning", "storage", message, f"prices: {S3_PRICE}"))
    return findings


def buckets(region: Region, site: AwsSite) -> Iterator[Finding]:
    """Whether each bucket is there. Nodes ask with a role of their own, so that a refusal here is unknown."""
    for bucket in {bucket.bucket: bucket for bucket in site.storage.s3}.values():
        yield _bucket(region, site, bucket)


def _bucket(region: Region, site: AwsSite, bucket: AwsBucket) -> Finding:
    subject = f"bucket {bucket.bucket}"
    try:
        answer = region.ask("s3", "head_bucket", Bucket=bucket.bucket)
    except Trouble as error:
        if error.code in ("404", "NoSuchBucket"):  # S3 answers this question without a body, by its status alone
            hint = "make it, or name another one in sites.*.storage.s3"
            return Finding("blocks", subject, "there is no such bucket", hint)
        if error.code == "403":
            error = Trouble("denied", "S3 answers 403")
        return unknown(subject, error, "s3:ListBucket, or look yourself whether the account has it")
    bucket_region = str(answer.get("BucketRegion") or site.region)
    if bucket_region != site.region:
        message = (
            f"it is in {bucket_region}, and the nodes are in {site.region}: what they read is slower, and paid as "
            "traffic"
        )
        return Finding("warning", subject, message, f"copy what is read often to a bucket in {site.region}")
    return Finding("ok", subject, "is there")
