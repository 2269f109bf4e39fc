"""`method: maas`: machines that a MAAS has. Terraform allocates, deploys and releases them; MAAS says what is ready.

The API key (consumer:token:secret) comes from MAAS_API_KEY, as canonical/maas has it, and stands in no file and no
argument. Requests are signed with OAuth 1.0's PLAINTEXT (maas.io/docs, "API authentication"), which is the key
itself: over http only where the site says `insecure`, and every preflight says it again.
"""

from __future__ import annotations

import os
import secrets
import time
import urllib.parse
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from provisioner.common import stored
from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.common.text import counted, one_line
from provisioner.machines.providers import first_boot
from provisioner.machines.providers.base import Module, Place, ProviderBlock
from provisioner.plan.models import Plan
from provisioner.stack.fetch import FetchError, ask

if TYPE_CHECKING:
    from provisioner.machines.providers.baremetal.settings import Maas

VERSION = ">= 2.4.0, < 3.0"
"""As terraform/maas/versions.tf; a test holds them equal."""
KEY = "MAAS_API_KEY"
TIMEOUT_S = 30.0
"""Of one question, until all of its answer is there."""
LIMIT = 64 << 20


def api_key() -> str:
    """Raises GpuprovError where there is none, or none of that form."""
    key = os.environ.get(KEY, "").strip()
    if key.count(":") != 2 or not all(key.split(":")):
        raise GpuprovError(
            f"{KEY} is {'not an API key of MAAS' if key else 'not set'}",
            where="MAAS",
            hint=f"export {KEY}=…: in MAAS under your account's API keys, three parts with colons",
        )
    return key


class MaasModule(Module):
    """terraform/maas."""

    folder = "maas"

    def __init__(self, site_context: Place, settings: Maas) -> None:
        self._site_context, self._settings = site_context, settings

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:  # noqa: ARG002
        return {"maas": ProviderBlock("canonical/maas", VERSION, {"api_url": self._settings.url})}

    def environment(self) -> Mapping[str, str]:
        return {KEY: api_key()}

    def inputs(self, plan: Plan) -> dict[str, Any]:
        site, groups = self._settings, [group for group in plan.groups if group.site == self._site_context.site]
        series = {}
        for group in groups:
            base = plan.base(group)
            if base is None or base.id is None:
                raise GpuprovError(f"the lock has no series of {group.stack.os}", hint="run `gpuprov lock` again")
            series[group.name] = base.id
        placement = {"pool": site.pool, "zone": site.zone, "network": site.network}
        tags = {name: list(tags) for name, tags in site.tags.items()}
        return {
            "series": series,
            "create_timeout": f"{plan.spec.timeouts.machine_s}s",
            **({"tags": tags} if tags else {}),
            **{key: value for key, value in placement.items() if value},
        }

    def user_data(self, plan: Plan, ssh_public_key: str) -> str:
        return first_boot.cloud_config(plan.spec.user(self._site_context.site), ssh_public_key)

    def address(self, node: str) -> str:
        return f'module.site.maas_instance.node["{node}"]'


class MaasApi:
    """Reads a MAAS (API 2.0)."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def get(self, path: str, query: list[tuple[str, str]]) -> Any:
        """Raises GpuprovError where the question was not answered."""
        consumer, token, secret = api_key().split(":")
        signed = {
            "oauth_version": "1.0", "oauth_signature_method": "PLAINTEXT", "oauth_consumer_key": consumer,
            "oauth_token": token, "oauth_signature": f"&{secret}", "oauth_nonce": secrets.token_hex(16),
            "oauth_timestamp": str(int(time.time())),
        }  # fmt: skip
        header = "OAuth " + ", ".join(f'{key}="{urllib.parse.quote(value, safe="")}"' for key, value in signed.items())
        address = f"{self._url}/api/2.0/{path}?{urllib.parse.urlencode(query)}"
        headers = {"Authorization": header, "Accept": "application/json"}
        status: int | None = None
        try:
            answer = ask(address, who="MAAS", limit=LIMIT, deadline_s=TIMEOUT_S, headers=headers)
            status = answer.status
            if status == 200:
                return stored.loads(answer.body)
        except FetchError as error:
            status = error.status
            if status is None:
                reason = error.message.removeprefix(f"MAAS: {address}: ")
                message = f"MAAS was not reached: {reason}"
                raise GpuprovError(message, where=self._url, hint="look at maas.url") from None
        except ValueError as error:
            message = f"MAAS's answer is not JSON: {error}"
            raise GpuprovError(message, where=self._url, hint="look at maas.url") from None
        hint = "look at MAAS's regiond log"
        if status in (401, 403):
            hint = f"look at {KEY} and what its user may do"
        elif 300 <= status < 400:
            hint = "maas.url has to be the address of MAAS itself: its key is sent to no other"
        raise GpuprovError(f"MAAS answers {status}", where=self._url, hint=hint)


def preflight(api: MaasApi, site: Maas, name: str, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
    """Whether MAAS has as many machines ready as are still to be deployed, group by group."""
    findings, taken = [], set[str]()
    if site.insecure:
        message = (
            f"{site.url} has no TLS: everyone on that network can read the API key, and can answer instead of MAAS"
        )
        findings.append(Finding("warning", "MAAS", message, "https (`gpuprov docs metal maas`)"))
    for group in (group for group in plan.groups if group.site == name):
        missing = len(set(group.node_names()) - set(existing_nodes))
        if not missing:
            continue
        query = [("status", "ready"), *(("tags", tag) for tag in site.tags.get(group.name, ()))]
        query += [("pool", site.pool)] if site.pool else []
        query += [("zone", site.zone)] if site.zone else []
        try:
            answer = api.get("machines/", query)
            ready = {str(row["system_id"]) for row in answer} - taken
        except GpuprovError as error:
            refused = "answers 40" in error.message or KEY in error.message
            return [Finding("blocks" if refused else "unknown", "MAAS", error.message, error.hint)]
        except (TypeError, KeyError):
            return [Finding("unknown", "MAAS", "its answer is not a list of machines")]
        taken |= set(sorted(ready)[:missing])
        filter_text = ", ".join(f"{key} {value}" for key, value in query[1:])
        which = f" ({filter_text})" if filter_text else ""
        message = f"{len(ready)} of {counted(missing, 'machine')} for {group.name} are Ready{which}"
        if len(ready) < missing:
            findings.append(Finding("blocks", "MAAS", message, "commission more, or look at pool, zone and tags"))
        else:
            findings.append(Finding("ok", "MAAS", message))
    is_answered = any(finding.status in ("ok", "blocks") for finding in findings)
    return [*findings, *(_left_allocated(api) if is_answered else ())]


def _left_allocated(api: MaasApi) -> list[Finding]:
    """A warning where machines are Allocated to the key's own account and not deployed: an `up` that was killed between
    the two leaves such machines, and no state knows them. Others may be at work with the same account, so nothing is
    released. https://maas.io/docs/api (users, whoami; machines, status)"""
    try:
        me = str(api.get("users/", [("op", "whoami")])["username"])
        allocated = [
            one_line(f"{row['hostname']} ({row['system_id']})", 80)
            for row in api.get("machines/", [("status", "allocated")])
            if row["owner"] == me
        ]
    except GpuprovError as error:
        return [Finding("unknown", "MAAS", f"whether machines were left Allocated: {error.message}", error.hint)]
    except (TypeError, KeyError):
        return [
            Finding("unknown", "MAAS", "whether machines were left Allocated: its answer is not a list of machines")
        ]
    if not allocated:
        return []
    message = f"Allocated to {me} and not deployed: {', '.join(sorted(allocated)[:8])}"
    return [Finding("warning", "MAAS", message, "an `up` that was killed leaves such machines: release those in MAAS")]
