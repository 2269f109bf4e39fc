"""Machines that a sandbox site has not: the simulated refusals of sandbox/site_faults.py, read as the real provider
of the site reads its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.machines.providers import base
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.capacity import Capacity, Choices, Way
from provisioner.machines.providers.cloud_errors import AFTER, CloudError, has_table, row_of, sandbox_texts, table
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.sandbox import site_faults

ANY = "any zone"


class SimulatedCapacity:
    """See providers/capacity.py for the contract. Simulated machines are there, but for those that a fault refuses."""

    def __init__(self, site_context: Place) -> None:
        self._site_context = site_context
        self.region = str(getattr(site_context.settings, "region", site_context.site))

    def zones(self, plan: Plan) -> Sequence[str]:  # noqa: ARG002
        return tuple(getattr(self._site_context.settings, "zones", ())) or (ANY,)

    def error(self, diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        _, simulated, error_text = diagnostic.text.partition(site_faults.MARK)
        if not simulated:
            return CloudError("unknown", "", diagnostic.text, diagnostic.address)
        simulated_diagnostic = Diagnostic(error_text.strip(), "", diagnostic.address)
        if real := self._real():
            return real.error(simulated_diagnostic, group, option)
        code, _, text = error_text.strip().partition(": ")
        row = row_of(table("sandbox"), [code], text)
        kind = row.kind if row else "unknown"
        return CloudError(kind, code, text, diagnostic.address, row.hint if row else "", then=AFTER.get(kind, "stop"))

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:  # noqa: ARG002
        return []

    def ends(self, plan: Plan) -> Mapping[str, datetime]:  # noqa: ARG002
        return {}

    def refusals(self, plan: Plan) -> dict[str, str]:
        """Node → what is said in place of making it, by the faults that its site has now and the way in which it is
        asked for."""
        faults = site_faults.active(self._site_context.workspace)
        choices, refusals = Choices.read(self._site_context.workspace), dict[str, str]()
        texts = sandbox_texts(self._site_context.settings.provider if self._real() else "sandbox")
        for group in plan.groups if faults else ():
            if group.site == self._site_context.site:
                option = choices.current_option(group, self.zones(plan))
                refusals |= site_faults.refused(faults, group, option.kind, option.zone, choices.retries, texts)
        return refusals

    def taken(self) -> dict[str, str]:
        """Group → the zone that it was had in, where the first one refused it."""
        return {
            name: option.zone
            for name, option in Choices.read(self._site_context.workspace).taken.items()
            if option.zone != ANY
        }

    def _real(self) -> Capacity | None:
        """What the site's own provider knows of its errors; None where it makes no machines yet."""
        provider = base.find(self._site_context.settings.provider)
        return provider(self._site_context).capacity if provider and has_table(provider.name) else None
