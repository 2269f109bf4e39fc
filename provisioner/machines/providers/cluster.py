"""The providers of one cluster: one object for each site, made once."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import ValidationError

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import ERRORED, MADE_BY, STATE, ClusterPaths, write_whole
from provisioner.machines.providers.base import SANDBOX, Place, Provider, provider_of
from provisioner.machines.providers.hosts import LOCAL
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec
from provisioner.spec.site import Site
from provisioner.spec.sites import SITE
from provisioner.transport import ssh_config

SETTINGS = "site.json"
"""File in a workspace: the site's block of cluster.yaml, for a site that is not there any more."""
MARK = "hosts"
"""File in a workspace: its machines existed before. Another way to have them would forget these."""
ACCOUNT = "account"
"""File in a workspace: the number of the cloud's account in which its machines are, or UNTOLD."""
UNTOLD = "unknown"
"""Where nobody could tell the account: a provider that has none, or does not answer."""
ACCOUNT_LINE = re.compile(r"[A-Za-z0-9-]{1,64}\n")
"""What it has: the number of a cloud account or subscription, a line of its own."""


class Providers:
    """Made with the cluster, whatever is known of its machines by then."""

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths) -> None:
        self._spec, self._paths = spec, paths
        self._known: dict[str, Provider] = {}

    def at(self, site: str) -> Provider:
        """The provider of a site of cluster.yaml; the sandbox's with --sandbox. Raises GpuprovError for one that makes
        no machines yet."""
        if site not in self._known:
            settings = self._spec.sites[site]
            name = SANDBOX if self._paths.sandbox else settings.provider
            self._known[site] = provider_of(name, self._site_context(site, settings))
        return self._known[site]

    def is_recorded(self, site: str) -> bool:
        """Whether `record` has written down who makes a site's machines."""
        return (self._paths.site(site) / MADE_BY).exists()

    def record(self, site: str) -> None:
        """Write down who makes a site's machines and where, before any is made: `down` goes by it. To be called when
        `moved` has nothing to say."""
        workspace, account = self._paths.site(site), self._account(site)
        if account or not (workspace / ACCOUNT).exists():
            write_whole(workspace / ACCOUNT, (account or UNTOLD) + "\n")
        write_whole(workspace / MADE_BY, self.at(site).name + "\n")
        write_whole(workspace / SETTINGS, self._spec.sites[site].model_dump_json() + "\n")

    def moved(self, site: str) -> dict[str, tuple[str, str]]:
        """What says where a site's machines are, and is not what it was when they were recorded: key of cluster.yaml,
        or "account" → (recorded, present). What nobody recorded, or can tell now, is not compared."""
        desired = self._spec.sites.get(site)
        if self._paths.sandbox or not (self._paths.site(site) / MADE_BY).exists():
            return {}
        former = self._recorded(site)
        changed: dict[str, tuple[str, str]] = {}
        if former is not None and desired is not None:
            recorded_home, desired_home = former.home(), desired.home()
            keys = (
                dict.fromkeys([*recorded_home, *desired_home])
                if recorded_home["provider"] == desired_home["provider"]
                else ("provider",)
            )
            changed = {
                key: (recorded_home.get(key, ""), desired_home.get(key, ""))
                for key in keys
                if recorded_home.get(key) != desired_home.get(key)
            }
        if "method" in changed:  # `home` has one word for several of them
            changed["method"] = (str(getattr(former, "method", "")), str(getattr(desired, "method", "")))
        accounts = self.recorded_account(site), self._account(site)
        return changed | ({"account": accounts} if all(accounts) and accounts[0] != accounts[1] else {})

    def recorded_account(self, site: str) -> str:
        """The account in which a site's machines are; empty where it was never told. Raises GpuprovError where the file
        is damaged or missing: machines would be looked for, and made, in another account."""
        file = self._paths.site(site) / ACCOUNT
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            if self._paths.sandbox or not (self._paths.site(site) / MADE_BY).exists():
                return ""
            raise self._lost_account(site, "is missing") from None
        if not ACCOUNT_LINE.fullmatch(text):
            raise self._lost_account(site, f"is damaged: {text[:40]!r} is not the number of an account")
        return "" if text.strip() == UNTOLD else text.strip()

    def _lost_account(self, site: str, message: str) -> GpuprovError:
        file = self._paths.site(site) / ACCOUNT
        hint = f"write the number of the account with the machines of site {site} into {file}"
        return GpuprovError(message, where=str(file), hint=f"{hint} ({UNTOLD} without an account)")

    def _account(self, site: str) -> str:
        """The account that answers at a site now; empty where nobody can tell, or in the sandbox."""
        provider = self.made_at(site) if (self._paths.site(site) / MADE_BY).exists() else self.at(site)
        finding = None if provider.simulated else provider.account()
        return finding.account if finding is not None else ""

    def _recorded(self, site: str) -> Site | None:
        try:
            return SITE.validate_json((self._paths.site(site) / SETTINGS).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def made(self) -> dict[str, Provider]:
        """Site → provider of every workspace in which machines were made, or about to be, also of sites that
        cluster.yaml no longer names: what a plan alone has left is none. Raises GpuprovError for a workspace whose
        provider is not known: its machines would be forgotten."""
        folder = self._paths.root / "sites"
        workspaces = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        traces = (MADE_BY, STATE, ERRORED, MARK)
        site_names = [path.name for path in workspaces if any((path / trace).exists() for trace in traces)]
        return {site: self.made_at(site) for site in site_names}

    def made_at(self, site: str) -> Provider:
        """The provider of a workspace, where its machines were recorded to be, whatever cluster.yaml says now."""
        workspace, desired = self._paths.site(site), self._spec.sites.get(site)
        try:
            name = (workspace / MADE_BY).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            name = SANDBOX if self._paths.sandbox else desired.provider if desired else ""
        if self._paths.sandbox:
            return self.at(site) if desired else provider_of(SANDBOX, self._site_context(site, Site(provider=name)))
        former = self._recorded(site)
        if desired is not None and desired.provider == name and (former is None or former.home() == desired.home()):
            return self.at(site)
        return provider_of(name, self._site_context(site, self._settings(site)))

    def _settings(self, site: str) -> Site:
        """The block of a site that cluster.yaml does not name any more, or names with another provider."""
        file = self._paths.site(site) / SETTINGS
        try:
            return SITE.validate_json(file.read_bytes())
        except (FileNotFoundError, ValidationError):
            raise GpuprovError(
                f"cannot determine the provider of this workspace: {SETTINGS} is missing or damaged",
                where=str(file.parent),
                hint=f"put site {site} back into cluster.yaml, then run `gpuprov down`",
            ) from None

    def proxies(self, nodes: Collection[Node]) -> dict[str, str]:
        """Node → ssh's ProxyCommand, for those that are not called by their address."""
        commands = {}
        for node in nodes:
            settings = self._spec.sites.get(node.site)
            access = self.at(node.site).access if settings is not None else None
            if access is not None and (command := access.proxy(node.id)):
                commands[node.name] = command
            elif settings is not None and settings.jump and not self._paths.sandbox:
                commands[node.name] = ssh_config.jump(settings.jump, node.address, node.port)
        for site, settings in self._spec.sites.items() if self._paths.sandbox else ():
            site_nodes = {node.name: node for node in nodes if node.site == site}
            for name, host in settings.jump_hosts(list(site_nodes)).items():
                config = ssh_config.jump_config(self._paths, site)
                commands[name] = ssh_config.jump(host, site_nodes[name].address, site_nodes[name].port, config)
        local = self.local(nodes)
        return {name: command for name, command in commands.items() if name not in local}

    def save_jump_hosts(self, nodes: Collection[Node]) -> dict[str, ProviderError]:
        """Write how ssh reaches the simulated jump hosts at the sites of these nodes; nothing is done for real sites.
        Gives the sites whose jump host does not answer, each with why."""
        failed = {}
        for site in sorted({node.site for node in nodes} & self._spec.sites.keys()) if self._paths.sandbox else ():
            try:
                host = self.at(site).jump_host([node.name for node in nodes if node.site == site])
            except ProviderError as error:
                failed[site] = ProviderError(f"site {site}: {error.message}", where=error.where, hint=error.hint)
                continue
            ssh_config.save_jump(self._paths, site, host)
        return failed

    def local(self, nodes: Collection[Node]) -> set[str]:
        """The nodes that are this very machine, by cluster.yaml and nothing else."""
        if self._paths.sandbox:
            return set()
        local_sites = {name for name, site in self._spec.sites.items() if site.this_machine()}
        return {node.name for node in nodes if node.site in local_sites and node.id in LOCAL}

    def given_keys(self, nodes: Collection[Node]) -> dict[str, str]:
        """Node → its host key, where a person has written it down. Raises GpuprovError for one that is not there."""
        host_keys = {}
        for node in nodes:
            hosts = self.at(node.site).hosts if node.site in self._spec.sites else None
            if hosts is not None and (key := hosts.host_key(node.id)):
                host_keys[node.name] = key
        return host_keys

    def host_key(self, node: Node) -> str | None:
        """A new machine's host key as its provider knows it by another way than the network; None where it does not."""
        access = self.at(node.site).access
        return access.host_key(node.id) if access is not None else None

    def _site_context(self, site: str, settings: Site) -> Place:
        return Place(self._spec.name, site, settings, self._paths.site(site))
