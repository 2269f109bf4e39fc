"""What would keep `up` from working in a region of Azure, found before anything is spent.

Every finding says what was seen, what to do, and the page where a person does it. A question that was denied, throttled
or not answered is `unknown`: said, and never taken for a yes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator

from provisioner.common.errors import GpuprovError
from provisioner.common.preflight import Finding
from provisioner.machines.providers.azure import named, permissions, quotas, sold
from provisioner.machines.providers.azure.client import Subscription, answered, enum_text
from provisioner.machines.providers.azure.findings import credentials, unknown
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.public_address import PublicAddress
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import Plan

NAMESPACES = ("Microsoft.Compute", "Microsoft.Network")
STORAGE = "Microsoft.Storage"
FILES_PRICE = "https://azure.microsoft.com/pricing/details/storage/files/"
"""Resource providers of what the module makes. gpuprov registers none: that is a change of the subscription."""


def preflight(
    subscription: Subscription,
    site_context: Place,
    plan: Plan,
    existing_nodes: Collection[str],
    public_address: PublicAddress,
) -> list[Finding]:
    """Everything about the groups of one site. `existing_nodes`: names of their nodes that stand already."""
    groups = [group for group in plan.groups if group.site == site_context.site]
    findings = [caller_identity(subscription)]
    if findings[0].status == "blocks":
        return findings
    findings += _registered(subscription)
    sizes, more = sold.sizes(subscription)
    findings += more
    for group in groups:
        findings += sold.findings(subscription, group, sizes)
    findings += quotas.room(subscription, groups, sizes, existing_nodes)
    findings += quotas.network(subscription, groups, existing_nodes)
    findings += named.findings(subscription, groups, existing_nodes)
    findings += named.trusted_launch(subscription, groups, existing_nodes, sizes)
    findings += permissions.findings(subscription)
    if files := subscription.site.storage.files:
        message = (
            f"`gpuprov down` removes the file share at {files.path} with its data; its price goes by its size, used or "
            "not, and is in no figure here"
        )
        action = f"keep a copy of what has to stay; prices: {FILES_PRICE}"
        findings.append(Finding("warning", "storage", message, action))
    for group in groups:
        base = plan.base(group)
        if base is None or base.id is None:
            message = f"the lock has no image of {group.boots}" + (f": {base.why}" if base else "")
            findings.append(Finding("blocks", f"group {group.name}", message, "run `gpuprov lock` again, signed in"))
        missing_count = sum(name not in existing_nodes for name in group.node_names())
        if missing_count and group.spec.capacity.kind != "reservation":
            message = (
                f"whether Azure has {missing_count} × {group.machine.name} now is known only when they are created"
            )
            findings.append(
                Finding("unknown", f"capacity of {group.name}", message, "a quota does not guarantee capacity")
            )
    if public_address.is_needed(plan):
        try:
            findings.append(Finding("ok", "access", f"ssh is open to {public_address.network} alone"))
        except GpuprovError as error:
            findings.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
    return findings


def caller_identity(subscription: Subscription) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    try:
        return _account_finding(subscription)
    except Trouble as error:
        return credentials(error, subscription.cloud)


def _account_finding(subscription: Subscription) -> Finding:
    """Who asks, and that the subscription may be used. Raises Trouble."""
    row = subscription.get(subscription.scope, "2022-12-01")
    name, state = str(row.get("displayName") or subscription.id), str(row.get("state") or "Enabled")
    message = f"{_signed_in(subscription)}, subscription {name} ({subscription.id})"
    if state not in ("Enabled", "Warned", "PastDue"):
        hint = "look for mail from Azure, or at its bills; https://aka.ms/subscriptionstates"
        return Finding("blocks", "credentials", f"{message} is {state}: nothing can be made in it", hint)
    return Finding("ok", "credentials", message, account=subscription.id)


def _signed_in(subscription: Subscription) -> str:
    """Who the token is of, as it says itself. Raises Trouble."""
    token = answered(lambda: subscription.credential.get_token(subscription.cloud.scope).token)
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return str(claims.get("upn") or claims.get("unique_name") or f"application {claims['appid']}")
    except (IndexError, ValueError, KeyError, TypeError):
        return "somebody whom the token does not name"


def _registered(subscription: Subscription) -> Iterator[Finding]:
    for namespace in (*NAMESPACES, *((STORAGE,) if subscription.site.storage.files else ())):
        try:
            state = _state(subscription, namespace)
        except Trouble as error:
            yield unknown(namespace, error, "Microsoft.Resources/subscriptions/providers/read")
            continue
        if state != "Registered":
            message = f"the subscription is not registered for {namespace} ({state})"
            hint = f"`az provider register --namespace {namespace}`, once, by an administrator"
            yield Finding("blocks", namespace, message, hint)


def _state(subscription: Subscription, namespace: str) -> str:
    """Raises Trouble."""
    providers = subscription.client("resources").providers
    return enum_text(subscription.ask(lambda: providers.get(namespace)).registration_state)
