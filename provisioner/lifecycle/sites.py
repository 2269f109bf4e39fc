"""A fleet at several sites: those that a run is for, and how it goes on where one of them fails.

A site is left out at the stage where it fails; the others are made, configured and proven, and the run ends with the
exit code of the site that failed first. Where none is left, the run fails there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from provisioner import spec
from provisioner.common.errors import GpuprovError, InputError, Interrupted, ProviderError
from provisioner.common.events import Events, Stage
from provisioner.common.suggest import did_you_mean
from provisioner.lifecycle.session import Cluster
from provisioner.plan.models import Plan
from provisioner.rundir import placement
from provisioner.transport import process

T = TypeVar("T")
STOP_S = 60.0
"""How long each site's Terraform may take to end after Ctrl-C (as terraform.workspace.STOP_GRACE_S)."""


def chosen(cluster: Cluster, names: Collection[str]) -> list[str]:
    """The sites that a command is for: these, or all where none is named. Raises GpuprovError for one that no group is
    at; a site that a group may go to is taken beside the one at which it is."""
    used = {cluster.spec.site_of(name) for name in cluster.spec.groups}
    lists = placement.lists(cluster.spec)
    for name in names:
        groups = [group for group, sites in lists.items() if name in sites]
        if name not in used and not any(cluster.spec.site_of(group) in names for group in groups):
            known = name in cluster.spec.sites
            message = f"no group is at site {name}" if known else f"there is no site {name}"
            suggestion = "" if known else did_you_mean(name, sorted(used))
            if groups:
                suggestion = f"group {groups[0]} is at site {cluster.spec.site_of(groups[0])}: name it, too"
            raise GpuprovError(
                message, where=str(cluster.file), hint=suggestion or f"--site takes one of {', '.join(sorted(used))}"
            )
    return [site for site in cluster.spec.sites if site in (names or used)]


def candidates(cluster: Cluster, names: Collection[str]) -> list[str]:
    """The sites that a command is for, as `chosen`, and those that it may go on to where one has no capacity."""
    sites = chosen(cluster, names)
    lists = [listed for group, listed in placement.lists(cluster.spec).items() if cluster.spec.site_of(group) in sites]
    alternatives = {site for many in lists for site in many if not names or site in names}
    return [site for site in cluster.spec.sites if site in sites or site in alternatives]


def refuse_recipe(cluster: Cluster) -> None:
    """Raise GpuprovError for a recipe of images: its machines come and go with its builds."""
    if cluster.spec.image is not None:
        hint = (
            f"`gpuprov image build {cluster.file}` builds and proves its images, `gpuprov image prune` removes old ones"
        )
        raise GpuprovError("is a recipe of images, not a fleet", where=str(cluster.file), hint=hint)


def refuse_unready(cluster: Cluster, sites: Collection[str]) -> None:
    """Raise InputError, with the place in the file, for what these sites lack and a sandbox does without; and
    GpuprovError for a file or variable that they name and that can't be used. Called before anything else."""
    if not cluster.sandbox and (problems := spec.unready(cluster.file, cluster.spec, sites)):
        raise InputError(problems)
    for site in sites:
        cluster.providers.at(site).refuse_missing_files()


class Remaining:
    """The sites that a run still goes on with. `failed`: site → what it failed with, in the order in which they did."""

    def __init__(self, plan: Plan, events: Events) -> None:
        self.plan = plan
        self.failed: dict[str, GpuprovError] = {}
        self._events = events

    def leave(self, failed: Mapping[str, GpuprovError], stage: Stage) -> None:
        """Go on without these sites. Raises what they failed with where no other is left, and for "", the whole
        fleet."""
        if not failed:
            return
        self.failed.update(failed)
        going_on = [site for site in self.plan.sites() if site not in failed]
        if not going_on or "" in failed:
            raise together(self.failed)
        verb = "goes on" if len(going_on) == 1 else "go on"
        for site, error in failed.items():  # the run may end with another error
            cause = error.message.partition("\n")[0].removesuffix(":")
            hint = f"\n  {error.hint}" if error.hint else ""
            self._events(stage, "warning", f"site {site} is left out, {', '.join(going_on)} {verb}: {cause}{hint}")
        self.plan = self.plan.at(going_on)


def together(failed: Mapping[str, GpuprovError]) -> GpuprovError:
    """What several sites failed with, as one error; that of a single one as it is."""
    errors = list(failed.values())
    if len(errors) == 1:
        return errors[0]
    lines = [f"site {site}: {error.message}" if site else error.message for site, error in failed.items()]
    hints = "; ".join(dict.fromkeys(error.hint for error in errors if error.hint))
    joined = ProviderError("\n  ".join(lines), hint=hints)
    joined.exit_code = errors[0].exit_code
    return joined


def each(sites: Sequence[str], call: Callable[[str], T]) -> tuple[dict[str, T], dict[str, GpuprovError]]:
    """Call for each site, all at once; gives what came of it, and what failed."""

    def safely(site: str) -> T | GpuprovError:
        try:
            return call(site)
        except Interrupted:
            raise
        except GpuprovError as error:
            return error
        except (OSError, ValueError, LookupError) as error:  # a full disk, half an answer: the others' is kept
            return ProviderError(f"{type(error).__name__}: {error}", where=f"site {site}")

    answers = process.side_by_side([lambda site=site: safely(site) for site in sites], grace_s=STOP_S)  # type: ignore[misc]
    pairs = list(zip(sites, answers, strict=True))
    failed = {site: answer for site, answer in pairs if isinstance(answer, GpuprovError)}
    return {site: answer for site, answer in pairs if not isinstance(answer, GpuprovError)}, failed
