"""What would keep `up` from working in a region of Azure, found before anything is spent.

Every finding says what was seen, what to do, and the page where a person does it. A question that was denied, throttled
or not answered is `unknown`: said, and never taken for a yes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator

from provisioner.errors import GpuprovError
from provisioner.plan import Plan
from provisioner.preflight import Finding
from provisioner.providers.azure import named, permissions, quotas, sold
from provisioner.providers.azure.client import Subscription, answered, word
from provisioner.providers.azure.findings import credentials, unknown
from provisioner.providers.base import Place
from provisioner.providers.public_address import PublicAddress
from provisioner.providers.trouble import Trouble

NAMESPACES = ("Microsoft.Compute", "Microsoft.Network")
STORAGE = "Microsoft.Storage"
FILES_PRICE = "https://azure.microsoft.com/pricing/details/storage/files/"
"""Resource providers of what the module makes. gpuprov registers none: that is a change of the subscription."""


def preflight(
    subscription: Subscription, place: Place, plan: Plan, there: Collection[str], here: PublicAddress
) -> list[Finding]:
    """Everything about the groups of one site. `there`: names of their nodes that stand already."""
    groups = [group for group in plan.groups if group.site == place.site]
    found = [who(subscription)]
    if found[0].status == "blocks":
        return found
    found += _registered(subscription)
    sizes, more = sold.sizes(subscription)
    found += more
    for group in groups:
        found += sold.findings(subscription, group, sizes)
    found += quotas.room(subscription, groups, sizes, there)
    found += quotas.network(subscription, groups, there)
    found += named.findings(subscription, groups, there)
    found += named.trusted_launch(subscription, groups, there, sizes)
    found += permissions.findings(subscription)
    if files := subscription.site.storage.files:
        said = (
            f"`gpuprov down` removes the file share at {files.path} with its data; its price goes by its size, used or "
            "not, and is in no figure here"
        )
        action = f"keep a copy of what has to stay; prices: {FILES_PRICE}"
        found.append(Finding("warning", "storage", said, action))
    for group in groups:
        base = plan.base(group)
        if base is None or base.id is None:
            said = f"the lock has no image of {group.boots}" + (f": {base.why}" if base else "")
            found.append(Finding("blocks", f"group {group.name}", said, "run `gpuprov lock` again, signed in"))
        wanted = sum(name not in there for name in group.node_names())
        if wanted and group.spec.capacity.kind != "reservation":
            said = f"whether Azure has {wanted} × {group.machine.name} now is not known until they are made"
            found.append(Finding("unknown", f"capacity of {group.name}", said, "a quota is no capacity"))
    if here.asked(plan):
        try:
            found.append(Finding("ok", "access", f"ssh is open to {here.network} alone"))
        except GpuprovError as error:
            found.append(Finding("blocks", "access", error.message, "say in access.allow who may log in"))
    return found


def who(subscription: Subscription) -> Finding:
    """Who asks; a finding that blocks where that is nobody."""
    try:
        return _who(subscription)
    except Trouble as trouble:
        return credentials(trouble, subscription.cloud)


def _who(subscription: Subscription) -> Finding:
    """Who asks, and that the subscription may be used. Raises Trouble."""
    row = subscription.get(subscription.scope, "2022-12-01")
    name, state = str(row.get("displayName") or subscription.id), str(row.get("state") or "Enabled")
    said = f"{_signed_in(subscription)}, subscription {name} ({subscription.id})"
    if state not in ("Enabled", "Warned", "PastDue"):
        hint = "look for mail from Azure, or at its bills; https://aka.ms/subscriptionstates"
        return Finding("blocks", "credentials", f"{said} is {state}: nothing can be made in it", hint)
    return Finding("ok", "credentials", said, account=subscription.id)


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
        except Trouble as trouble:
            yield unknown(namespace, trouble, "Microsoft.Resources/subscriptions/providers/read")
            continue
        if state != "Registered":
            said = f"the subscription is not registered for {namespace} ({state})"
            hint = f"`az provider register --namespace {namespace}`, once, by somebody who may"
            yield Finding("blocks", namespace, said, hint)


def _state(subscription: Subscription, namespace: str) -> str:
    """Raises Trouble."""
    providers = subscription.client("resources").providers
    return word(subscription.ask(lambda: providers.get(namespace)).registration_state)
