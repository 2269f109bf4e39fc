"""A machine's console as Azure hands it out (boot diagnostics in Azure's own storage), and its host key there."""

from __future__ import annotations

from provisioner.common.errors import GpuprovError
from provisioner.machines.providers import console
from provisioner.machines.providers.azure import machines
from provisioner.machines.providers.azure.client import READ_S, Subscription
from provisioner.machines.providers.trouble import Trouble
from provisioner.stack.fetch import ask

LIMIT = 4 << 20
"""Bytes of a console's log that are read."""
MINUTES = 5
"""For how long the log's address, which is signed, is good."""


class AzureAccess:
    """See providers/base.py for the contract."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._known: dict[str, machines.Machine] = {}

    def proxy(self, machine: str) -> str | None:  # noqa: ARG002 (its address is called)
        return None

    def console(self, machine: str) -> str | None:
        return self._log(machine) or None

    def host_key(self, machine: str) -> str | None:
        return console.awaited(lambda: self._log(machine))

    def _log(self, machine: str) -> str | None:
        """What the console shows; empty where Azure has nothing of it yet, None where it may not be read."""
        try:
            vm = self._machine(machine)
            if vm is None:
                return None
            client = self._subscription.client("compute").virtual_machines
            log_address = self._subscription.ask(
                lambda: client.retrieve_boot_diagnostics_data(
                    vm.resource_group, vm.name, sas_uri_expiration_time_in_minutes=MINUTES
                )
            ).serial_console_log_blob_uri
            answer = ask(str(log_address), who="console", limit=LIMIT, deadline_s=READ_S)
            if answer.status == 200:
                return answer.body.decode("utf-8", "replace")
            return "" if answer.status == 404 else None
        except Trouble as error:
            return "" if error.kind == "absent" else None
        except (GpuprovError, ValueError):  # its text has the signed address
            return None

    def _machine(self, number: str) -> machines.Machine | None:
        """By the machine's own id. Raises Trouble."""
        if number not in self._known:
            self._known = {vm.number: vm for vm in machines.listed(self._subscription)}
        return self._known.get(number)
