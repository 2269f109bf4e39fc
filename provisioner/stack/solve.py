"""What cluster.yaml pins and what the machines are → one consistent Stack for each group.

Groups whose machines ask for the same are solved once. A pin holds for every group that it can hold for: in a fleet of
both makers, NVIDIA's pins are for the NVIDIA machines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from provisioner import catalog
from provisioner.catalog.models import Gpu, Machine
from provisioner.common.suggest import did_you_mean
from provisioner.spec.models import ClusterSpec
from provisioner.spec.source_map import dotted
from provisioner.stack import vendor_images
from provisioner.stack.assemble import assemble
from provisioner.stack.candidates import (
    TRAITS,
    Candidate,
    branch_of,
    candidates,
    driver,
    image,
    readable,
    starts,
    trait,
)
from provisioner.stack.components import COMPONENTS, on_request, pins, title
from provisioner.stack.conflict import Place, StackConflict, conflict
from provisioner.stack.facts import rows
from provisioner.stack.image_facts import ImageFacts, Read, corrected, unknown
from provisioner.stack.models import Stack
from provisioner.stack.resolve import Need, Problem, Unsolvable, resolve


def request(spec: ClusterSpec) -> dict[str, str]:
    """Everything that a lock depends on, flat and in a stable order: pins, and each group's machine and options."""
    spec = spec.by_machine()
    flat: dict[str, str] = {}
    for key, value in spec.stack.model_dump(exclude_none=True, exclude={"repositories"}).items():
        if value:
            flat[f"stack.{key}"] = ", ".join(value) if isinstance(value, tuple) else str(value)
    for name, user_repository in sorted(spec.stack.repositories.items()):
        for key, value in user_repository.model_dump(exclude_none=True).items():
            flat[f"stack.repositories.{name}.{key}"] = " ".join(value) if isinstance(value, tuple) else value
    flat["monitoring.dcgm_exporter"] = str(spec.monitoring.dcgm_exporter).lower()
    if spec.monitoring.grafana:
        flat["monitoring.grafana"] = ", ".join(spec.monitoring.heads)
    for name, group in sorted(spec.groups.items()):
        flat |= dict.fromkeys(shared_storage(spec, name).values(), "asked for")
        flat[f"groups.{name}.machine"] = group.machine_type()
        if group.image is not None:
            flat[f"groups.{name}.image"] = group.image
        if group.network.rdma is not None:
            flat[f"groups.{name}.network.rdma"] = str(group.network.rdma).lower()
        if group.base != "plain":
            flat[f"groups.{name}.base"] = group.base
    return flat


def solve(
    spec: ClusterSpec,
    *,
    place: Place = str,
    keep: Mapping[str, Mapping[str, str]] | None = None,
    read: Read | None = None,
) -> dict[str, Stack]:
    """One Stack for each group of `spec.by_machine`. Images have no digest yet, packages are the sandbox's: pinning.py
    reads the real ones.

    `place` says where a key of cluster.yaml stands, for errors. `keep`: group → component → a version that is kept
    where that is possible (a lock that is there already). `read`: images that were asked what they hold.
    Raises StackConflict where no set of versions satisfies the pins.
    """
    spec = spec.by_machine()
    known = spec.catalog
    refuse_foreign_pins(spec, place)
    refuse_unknown_repositories(spec, place)
    vendor_images.refuse(spec, place)
    stacks = {}
    image_reads = tuple(sorted((read or {}).items(), key=lambda item: item[0]))
    for name, group in spec.groups.items():
        machine = spec.machine(name)
        gpu = known.gpu(machine.gpu_model)
        kept_versions = tuple(sorted(_versions_to_keep(keep or {}, name).items()))
        efa = machine.uses_efa(group.network.rdma)
        pins, extra = _pins(spec, gpu), extra_components(spec, name)
        try:
            like, chip = _like(machine, gpu)
            chosen = _resolve(
                like, chip, pins, spec.stack.containers, efa, spec.monitoring.dcgm_exporter, kept_versions,
                tuple(extra), image_reads, vendor_images.provider_of(spec, name),
            )  # fmt: skip
        except Unsolvable:
            raise conflict(group_problem(spec, name, image_reads), f"group {name} on {machine.name}", place) from None
        stacks[name] = assemble(chosen, machine, gpu, dict(pins) | extra, spec.stack.repositories)
    return stacks


def _versions_to_keep(keep: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    """The versions that stay; of train@west those of train where its machine type was the same at all sites before."""
    return keep.get(name) or keep.get(name.partition("@")[0]) or {}


def extra_components(spec: ClusterSpec, group: str) -> dict[str, str]:
    """What a group has beside that of its machine: component → the key of cluster.yaml that asks for it."""
    grafana = {"grafana": "monitoring.grafana"} if spec.monitoring.has_grafana(group) else {}
    return shared_storage(spec, group) | grafana


def shared_storage(spec: ClusterSpec, group: str) -> dict[str, str]:
    """What mounts the file systems of a group's site, or of each site that it may be at: component → the key of
    cluster.yaml that asks for it."""
    file_systems = [
        (name, file_system)
        for name in spec.sites_of(group)
        for file_system in spec.sites[name].file_systems()
        if file_system.component
    ]
    return {
        file_system.component: dotted(("sites", name, *file_system.key[:2]))
        for name, file_system in reversed(file_systems)
    }


def group_problem(spec: ClusterSpec, group: str, image_reads: Seen = ()) -> Problem:
    """What is to be solved for a group, with the keys of cluster.yaml that ask for it."""
    known = spec.catalog
    machine = spec.machine(group)
    gpu = known.gpu(machine.gpu_model)
    efa = machine.uses_efa(spec.groups[group].network.rdma)
    problem = problem_of(
        machine, gpu, _pins(spec, gpu), spec.stack.containers, efa, spec.monitoring.dcgm_exporter,
        extra=tuple(extra_components(spec, group)), image_reads=image_reads,
        vendor=vendor_images.provider_of(spec, group),
    )  # fmt: skip
    paths = {key: f"groups.{group}.{key}" for key in ("machine", "base")}
    only_for = {name: paths.get(key, key) for name, key in problem.only_for.items()}
    return replace(
        problem, needs=tuple(replace(n, path=paths.get(n.path, n.path)) for n in problem.needs), only_for=only_for
    )


def refuse_foreign_pins(spec: ClusterSpec, locate: Place) -> None:
    """Raise StackConflict for a pin of NVIDIA's software in a fleet that has no NVIDIA GPU."""
    known = spec.catalog
    machines = [spec.machine(name) for name in spec.groups]
    vendors = {known.gpu(machine.gpu_model).vendor for machine in machines}
    if "nvidia" in vendors:
        return
    for key in pins("nvidia"):
        if not any(key in pins(vendor) for vendor in vendors) and getattr(spec.stack, key) is not None:
            amd = next((machine.gpu_model for machine in machines if machine.gpu_arch.startswith("cdna")), None)
            message = f"{key} is for machines with GPUs, and no group has one"
            if amd is not None:
                message = f"{key} is NVIDIA software and {amd} is an AMD GPU"
            path = f"stack.{key}"
            raise StackConflict(message, where=locate(path), hint="leave it out", asked={path: message})


def refuse_unknown_repositories(spec: ClusterSpec, locate: Place) -> None:
    """Raise StackConflict for a repository of one's own under a name that no part of a stack comes from."""
    known = rows("repositories")
    for name, user_repository in spec.stack.repositories.items():
        path = f"stack.repositories.{name}"
        archives = "archives" in known.get(name, {})
        if (
            user_repository.uri is None
            and archives
            and (user_repository.fingerprint is not None or user_repository.suite or user_repository.components)
        ):
            message = f"the vendor of {name} has no apt repository: one of your own needs uri, key and fingerprint"
            raise StackConflict(message, where=locate(path), hint="write uri: … and key: …", asked={path: message})
        if name in known and user_repository.sha256 is not None and (user_repository.uri is not None or not archives):
            message = f"sha256 is for files of a vendor that has no apt repository; {name} is trusted by its key"
            raise StackConflict(message, where=locate(path), hint="leave it out", asked={path: message})
        if name not in known:
            hint = did_you_mean(name, known) or f"repositories: {', '.join(known)}"
            message = f"unknown repository {name}"
            raise StackConflict(message, where=locate(path), hint=hint, asked={path: message})


FRAMEWORKS = ("pytorch", "tensorflow")
"""Components that come in a container image."""

Pins = tuple[tuple[str, str], ...]
Seen = tuple[tuple[str, ImageFacts], ...]
"""Images that were asked what they hold."""


def _pins(spec: ClusterSpec, gpu: Gpu) -> Pins:
    values = {key: getattr(spec.stack, key) for key in pins(gpu.vendor)}
    return tuple((key, value) for key, value in values.items() if value is not None)


def _like(machine: Machine, gpu: Gpu) -> tuple[Machine, Gpu]:
    """The first machine of the catalogue that asks for the same of its stack: those are solved once."""
    return _first_like(gpu.arch, gpu.ecc, machine.network.kind) or (machine, gpu)


@cache
def _first_like(arch: str, ecc: bool, network: str) -> tuple[Machine, Gpu] | None:
    known = catalog.load()
    pairs = ((machine, known.gpu(machine.gpu_model)) for machine in known.listed.values())
    return next(((m, g) for m, g in pairs if (g.arch, g.ecc, m.network.kind) == (arch, ecc, network)), None)


@lru_cache(maxsize=4096)
def _resolve(
    machine: Machine, gpu: Gpu, pins: Pins, containers: tuple[str, ...], efa: bool, exporter: bool, keep: Pins,
    extra: tuple[str, ...], image_reads: Seen, vendor: str,
) -> dict[str, Candidate]:  # fmt: skip
    return resolve(problem_of(machine, gpu, pins, containers, efa, exporter, keep, extra, image_reads, vendor))


def problem_of(
    machine: Machine,
    gpu: Gpu,
    pins: Pins,
    containers: tuple[str, ...] = (),
    efa: bool = False,
    exporter: bool = True,
    keep: Pins = (),
    extra: tuple[str, ...] = (),
    image_reads: Seen = (),
    vendor: str = "",
) -> Problem:
    """What is to be solved for one machine: the components that it has, what it is, what is pinned. `extra`: those of
    `extra_components`; `image_reads`: what images say of themselves; `vendor`: the provider whose own
    GPU image it boots."""
    pinned = dict(pins)
    containers = containers if gpu.vendor != "none" else ()
    images = {f"image {reference}": known_image(reference, dict(image_reads)) for reference in containers}
    rdma = machine.network.kind != "ethernet"
    names = _components(gpu, pinned, images, efa=efa, exporter=exporter, rdma=rdma, vendor=vendor)
    candidates_by_name = {name: trait(name) for name in TRAITS} | images
    candidates_by_name |= _candidates(gpu, pinned, (*names, *extra), dict(image_reads))
    if vendor:
        candidates_by_name = vendor_images.with_what_they_hold(candidates_by_name, vendor)
        candidates_by_name[vendor_images.NAME] = vendor_images.images(vendor)
    needs = (
        *_machine_needs(machine, gpu, candidates_by_name, efa=efa),
        *_pin_needs(pinned, candidates_by_name),
        *(Need(n, (some[0].version,), path="stack.containers", says=some[0].version) for n, some in images.items()),
        *([Need(vendor_images.NAME, path="base", says="base: vendor-hpc")] if vendor else []),
    )
    only_for = {name: f"stack.{name}" for name in on_request() if name in pinned and name in candidates_by_name}
    only_for |= {vendor_images.NAME: "base"} if vendor else {}
    if "pytorch" in pinned and (images or "tensorflow" in pinned):
        only_for["pytorch"] = "stack.pytorch"
    return Problem(needs, candidates_by_name, only_for | dict.fromkeys(images, "stack.containers"), dict(keep))


def _candidates(
    gpu: Gpu, pinned: Mapping[str, str], names: Sequence[str], image_reads: Read
) -> dict[str, tuple[Candidate, ...]]:
    """The versions that each component may have beside the others, with this GPU."""
    candidates_by_name = {name: candidates(name) for name in names}
    for name in set(FRAMEWORKS).intersection(names):
        candidates_by_name[name] = tuple(
            corrected(c, image_reads[c.facts["reference"]]) if c.facts["reference"] in image_reads else c
            for c in candidates_by_name[name]
        )
    if "pytorch" in names:
        if "tensorflow" in names and "cuda" not in pinned:
            candidates_by_name["tensorflow"] = tuple(map(_any_toolkit, candidates_by_name["tensorflow"]))
        candidates_by_name["pytorch"] = tuple(
            c for c in candidates_by_name["pytorch"] if (c.facts["maker"] == "AMD") == (gpu.vendor == "amd")
        )
    return _known_or_exact(candidates_by_name, pinned)


def _machine_needs(machine: Machine, gpu: Gpu, names: Collection[str], *, efa: bool) -> Iterator[Need]:
    """What the machine is, and what the rules for such machines need of the components `names`."""
    traits = {
        "gpu": gpu.arch,
        "gpu_class": "none" if gpu.vendor == "none" else "datacenter" if gpu.ecc else "geforce",
        "network": machine.network.kind if machine.network.kind != "efa" or efa else "ethernet",
    }
    parts = f"its {gpu.model} ({gpu.arch})" if gpu.vendor != "none" else "no GPU"
    summary = f"{machine.name} with {parts}"
    yield from (Need(name, (value,), path="machine", says=summary) for name, value in traits.items())
    for rule in rows("machines"):
        if all(traits[name] in values for name, values in rule["when"].items()):
            for name, spec in rule["needs"].items():
                if name in names:
                    reason = f"{machine.name} needs {title(name)} {readable(spec)} [{rule['source']}]"
                    yield Need(name, spec, path="machine", says=summary, reason=reason)


def _pin_needs(pinned: Mapping[str, str], names: Collection[str]) -> Iterator[Need]:
    """What `stack` pins of the components `names`. A pin of CUDA names the build of PyTorch, too."""
    for key, pin in pinned.items():
        if key in names:
            yield Need(key, pin=pin, path=f"stack.{key}", says=_pin_text(key, pin))
    if "pytorch" in names and "cuda" in pinned and "pytorch" in pinned and "+" not in pinned["pytorch"]:
        build = ".".join(pinned["cuda"].split(".")[:2])
        yield Need("pytorch", build=build, path="stack.cuda", says=_pin_text("cuda", pinned["cuda"]))


def known_image(reference: str, image_reads: Read) -> tuple[Candidate, ...]:
    """An image that cluster.yaml names: of the tables, corrected by what it says itself, or what it says alone."""
    known = image(reference)
    if reference not in image_reads:
        return known
    if not known[0].source:
        return unknown(known[0].name, reference, image_reads[reference])
    return tuple(corrected(candidate, image_reads[reference]) for candidate in known)


def _pin_text(key: str, pin: str) -> str:
    return f'stack.{key} "{pin}"'


def _components(
    gpu: Gpu, pinned: Mapping[str, str], images: Mapping[str, tuple[Candidate, ...]], *, efa: bool, exporter: bool,
    rdma: bool, vendor: str,
) -> list[str]:  # fmt: skip
    """The components of a node's stack: what every machine of its maker has, what is asked for, and what the `vendor`'s
    own GPU image holds."""
    conditions: dict[str, Callable[[str], bool]] = {
        "always": lambda _: True,
        "pinned": lambda name: name in pinned,
        "rdma": lambda name: name in pinned and rdma and not efa,
        "efa": lambda _: efa,
        "exporter": lambda _: exporter,
    }
    known = [c for c in COMPONENTS.values() if c.is_for(gpu.vendor) and c.name not in FRAMEWORKS]
    names = [c.name for c in known if c.when in conditions and conditions[c.when](c.name)]
    if gpu.vendor == "none":
        return names
    in_images = {name for some in images.values() for name in FRAMEWORKS if _holds(some, name, pinned)}
    names += [name for name in FRAMEWORKS if name in pinned and name not in in_images]
    if not images and "tensorflow" not in pinned and "pytorch" not in names:
        names.append("pytorch")
    if vendor:
        names += [name for name in vendor_images.brought(vendor, rdma=rdma and not efa) if name not in names]
    return names


def _holds(images: tuple[Candidate, ...], name: str, pinned: Mapping[str, str]) -> bool:
    """Whether an image is known to hold the framework that is pinned."""
    version = images[0].facts.get(name)
    return version is not None and name in pinned and starts(version, pinned[name])


def _known_or_exact(
    candidates_by_name: dict[str, tuple[Candidate, ...]], pinned: Mapping[str, str]
) -> dict[str, tuple[Candidate, ...]]:
    """An exact driver release that no row has, of a branch that one has: the repository will know it."""
    pin = pinned.get("driver")
    if (
        pin
        and re.fullmatch(r"\d{3}\.\d+\.\d{2}", pin)
        and "driver" in candidates_by_name
        and not any(starts(c.version, pin) for c in candidates_by_name["driver"])
    ):
        row = branch_of(pin)
        if row is not None:
            candidates_by_name["driver"] = (driver(row, pin), *candidates_by_name["driver"])
    return candidates_by_name


@cache
def _any_toolkit(candidate: Candidate) -> Candidate:
    """A framework brings its own CUDA in its image; the toolkit is for building against it. Beside PyTorch, whose
    toolkit it then is, another framework may have another CUDA."""
    return replace(candidate, needs={name: spec for name, spec in candidate.needs.items() if name != "cuda"})
