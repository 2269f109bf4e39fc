"""Key pairs: an account has a public key once in a project, whatever its name."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.common.preflight import Finding
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import unknown
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.tencent.tagged_resources import CLUSTER, SITE, tags_of
from provisioner.machines.providers.trouble import Trouble


def findings(
    region: Region, site: TencentSite, public_key: str | None, cluster: str, site_name: str
) -> Iterator[Finding]:
    """`public_key`: OpenSSH's text; None where it is not made yet, which no account has."""
    subject = "key pair"
    try:
        rows = region.all("cvm", "DescribeKeyPairs", "KeyPairSet")
    except Trouble as error:
        yield unknown(subject, error, "cvm:DescribeKeyPairs")
        return
    ours = _plain(public_key or "")
    if site.key_pair is not None:
        key_pair = next((row for row in rows if row.get("KeyId") == site.key_pair), None)
        if key_pair is None:
            yield Finding("blocks", subject, f"there is no key pair {site.key_pair}", "correct sites.*.key_pair")
        elif ours and _plain(str(key_pair.get("PublicKey") or "")) != ours:
            message = f"{site.key_pair} has another public key than access.ssh_key"
            yield Finding(
                "warning", subject, message, "nodes let in access.ssh_key all the same, and the other one besides"
            )
        return
    for row in rows if ours else ():
        tags = tags_of(row)
        if _plain(str(row.get("PublicKey") or "")) == ours and (tags.get(CLUSTER), tags.get(SITE)) != (
            cluster,
            site_name,
        ):
            message = f"the account has the public key of access.ssh_key already, as {row.get('KeyId')}"
            yield Finding("blocks", subject, message, f"sites.*.key_pair: {row.get('KeyId')}")


def _plain(text: str) -> str:
    """A public key without its comment."""
    return " ".join(text.split()[:2])
