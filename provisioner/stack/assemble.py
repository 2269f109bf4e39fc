"""From chosen versions to what is installed: packages with exact versions, repositories, images, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from provisioner.catalog import distributions
from provisioner.catalog.models import Gpu, Machine
from provisioner.spec.stack_request import OwnRepository
from provisioner.stack import vendor_images
from provisioner.stack.candidates import TRAITS, Candidate, newest_first, proven
from provisioner.stack.components import component_of
from provisioner.stack.facts import rows
from provisioner.stack.models import LOCAL, Archive, Component, Image, Package, Part, Repository, Stack, VendorImage

Modules = Literal["open", "proprietary"]

Chosen = Mapping[str, Candidate]


def assemble(
    chosen: Chosen,
    machine: Machine,
    gpu: Gpu,
    requested: Mapping[str, str],
    user_repositories: Mapping[str, OwnRepository] | None = None,
) -> Stack:
    """The Stack of one group. `requested`: component → how cluster.yaml asks for it; `user_repositories`: its
    repositories in place of the vendors'. Images have no digest yet, packages are those of a sandbox until the
    indexes are read."""
    driver = chosen.get("driver")
    modules = kernel_modules(gpu, driver) if driver else None
    values = _values(chosen, requested)
    parts = _parts(chosen, machine)
    packages = [p for part in parts for p in _packages(part, values, modules, machine)]
    vendor = _vendor(chosen, parts, packages)
    if vendor is not None:
        packages = [p for p in packages if p.part not in vendor.parts]
    system = chosen["os"]
    version = {name: candidate.version for name, candidate in chosen.items()}
    return Stack(
        os=system.version,
        kernel=requested.get("kernel"),
        driver=version.get("driver"),
        driver_branch=driver.facts["branch"] if driver else None,
        kernel_modules=modules,
        fabric_manager=version.get("driver") if machine.fabric_manager_required else None,
        cuda_driver=driver.facts.get("cuda") if driver else None,
        cuda_toolkit=values.get("cuda_minor"),
        cudnn=version.get("cudnn"),
        nccl=version.get("nccl"),
        efa=version.get("efa"),
        ofi_nccl=chosen["efa"].facts["ofi_nccl"] if "efa" in chosen else None,
        ofed=version.get("ofed"),
        gdrcopy=version.get("gdrcopy"),
        rocm=version.get("rocm"),
        pytorch=_framework(chosen, "pytorch"),
        tensorflow=_framework(chosen, "tensorflow"),
        dcgm=version.get("dcgm"),
        dcgm_exporter=version.get("dcgm_exporter"),
        container_toolkit=version.get("container_toolkit"),
        packages=tuple(packages),
        repositories=tuple(
            repository(name, system, version, (user_repositories or {}).get(name))
            for name in sorted({p.repository for p in packages if p.repository})
        ),
        images=tuple(_image(c) for c in chosen.values() if "reference" in c.facts or c.name.startswith("image ")),
        components={
            name: Component(version=candidate.version, why=_vendor_reason(name, vendor) or why(candidate, requested))
            for name, candidate in chosen.items()
            if name not in TRAITS
        },
        vendor=vendor,
    )


def _vendor_reason(name: str, vendor: VendorImage | None) -> str:
    """Why a component has its version, where the cloud's image brings it."""
    if vendor is None or name not in (vendor_images.NAME, *vendor.parts):
        return ""
    row = next(row for row in rows(vendor_images.NAME) if row["image"] == vendor.name)
    reason = "cluster.yaml asks for base: vendor-hpc" if name == vendor_images.NAME else f"in {vendor.name}"
    return f"{reason} [{row['source']}]"


def _vendor(chosen: Chosen, stack_parts: Sequence[Part], packages: Sequence[Package]) -> VendorImage | None:
    """The cloud's own GPU image, where one was chosen, with the packages of what it brings."""
    image = chosen.get(vendor_images.NAME)
    if image is None:
        return None
    parts = vendor_images.parts(image, chosen, [part for part in vendor_images.WITH_DRIVER if part not in stack_parts])
    vendor_packages = tuple(package for package in packages if package.part in parts)
    return VendorImage(name=image.facts["image"], parts=parts, packages=vendor_packages)


def kernel_modules(gpu: Gpu, driver: Candidate) -> Modules:
    """open or proprietary: what the architecture takes, and where both go, the default of the driver's branch."""
    table = rows("kernel_modules")
    state = table[gpu.arch]
    if state == "default":
        return "open" if int(driver.facts["branch"]) >= int(table["open_from"]) else "proprietary"
    return "open" if state == "required" else "proprietary"


def why(candidate: Candidate, requested: Mapping[str, str]) -> str:
    """Why this version: who asked for it, or what speaks for it; and where its facts were read."""
    reasons = []
    if candidate.name in requested:
        reasons.append(f"cluster.yaml asks for {requested[candidate.name]}")
    facts = candidate.facts
    if candidate.name == "driver":
        end = facts.get("eol")
        kind = {"lts": "long-term support", "production": "production branch"}.get(facts["kind"], facts["kind"])
        reasons.append(f"{kind}{f', until {end}' if end else ''}")
    if sets := proven(candidate.name, candidate.version):
        reasons.append(f"ships in {', '.join(sets)}")
    if candidate.name == "os":
        reasons.append(f"supported until {facts['until']}")
    if candidate.name.startswith("image "):
        known = any(facts.get(key) for key in ("cuda", "pytorch", "tensorflow"))
        reasons.append("cluster.yaml names it" + ("" if known else "; nothing is known of what it holds"))
    return "; ".join(reasons or ["the newest that goes with the rest"]) + (
        f" [{candidate.source}]" if candidate.source else ""
    )


def repository(
    name: str, system: Candidate, versions: Mapping[str, str], user_repository: OwnRepository | None = None
) -> Repository:
    """A repository of the lock: cluster.yaml's own, or the vendor's, or the vendor's with the fingerprint that
    cluster.yaml names. uri, key and fingerprint are empty where nobody tells them. The key of one's own may be a path,
    relative to cluster.yaml, until it is pinned."""
    row = rows("repositories")[name]
    system_values = {"os": system.facts["folder"], "codename": system.facts["codename"]}
    values = {**versions, **system_values}
    if "archives" in row and (user_repository is None or user_repository.uri is None):
        return _of_archives(name, row, system, values)
    if user_repository is not None and user_repository.fingerprint is not None:
        suite = user_repository.suite if user_repository.suite is not None else row["suite"]
        components = (
            " ".join(user_repository.components) if user_repository.components is not None else row["components"]
        )
        built = Repository(
            name=name,
            uri=(
                user_repository.uri.format(**system_values)
                if user_repository.uri
                else (row["uri"] or "").format(**values)
            ),
            suite=suite.format(**values),
            components=components,
            key_url="",
            fingerprint=user_repository.fingerprint.upper(),
        )
        # Not as a lock has it: of a path the key itself is locked.
        return built.model_copy(update={"key_url": user_repository.key or (row["key_url"] or "").format(**values)})
    return Repository(
        name=name,
        uri=(row["uri"] or "").format(**values),
        suite=row["suite"].format(**values),
        components=row["components"],
        key_url=(row["key_url"] or "").format(**values),
        fingerprint=row["fingerprint"] or "",
    )


def _of_archives(name: str, row: Mapping[str, Any], system: Candidate, versions: Mapping[str, str]) -> Repository:
    """A repository that each node makes of the vendor's files; their hashes are found when they are fetched."""
    distribution = system.version.replace("-", "").replace(".", "_")
    values = {**versions, "OS": versions["os"].upper(), "system": distribution, "System": distribution.capitalize()}
    values["build"] = row.get("builds", {}).get(versions.get(belongs_to(name)), "").format(**values)
    archives = tuple(
        Archive(**{key: archive[key].format(**values) for key in ("url", "folder", "signature") if key in archive})
        for archive in row["archives"]
    )
    return Repository(
        name=name, uri=LOCAL.format(name=name), suite=row["suite"], components=row["components"],
        key_url=row["key_url"] or "", fingerprint=row["fingerprint"] or "", archives=archives,
    )  # fmt: skip


def belongs_to(repository: str) -> str:
    """The component whose packages come from a repository (of several the first)."""
    return component_of(next(block["part"] for block in rows("packages") if block["repository"] == repository))


def floating(package: Package) -> bool:
    """Whether any version of it will do, so that the repository's newest is locked."""
    return any(True for _ in _floating(package))


def least(package: Package) -> str:
    """The oldest version that will do of one whose newest is locked; empty where all do."""
    return _bound(package, "least")


def upper_bound(package: Package) -> str:
    """The version from which on none will do; empty where all do."""
    return _bound(package, "before")


def _bound(package: Package, key: str) -> str:
    return next((str(block[key]) for block in _floating(package) if key in block), "")


def _floating(package: Package) -> Iterator[Mapping[str, Any]]:
    for block in rows("packages"):
        if (block["part"], block["repository"], block["version"]) == (package.part, package.repository, "*"):
            patterns = (re.sub(r"\\{\w+\\}", r"\\S+", re.escape(name)) for name in _names(block))
            if any(re.fullmatch(pattern, package.name) for pattern in patterns):
                yield block


def _names(block: Mapping[str, Any]) -> list[str]:
    return [*block.get("names", []), *block.get("closure", [])]


def _parts(chosen: Chosen, machine: Machine) -> list[Part]:
    """The parts of the stack that have packages, in the order of data/packages.yaml."""
    unused = {"fabric_manager"} if not machine.fabric_manager_required else set()
    unused |= {"imex"} if not machine.imex_required else set()
    parts = dict.fromkeys(block["part"] for block in rows("packages"))
    return [part for part in parts if component_of(part) in chosen and part not in unused]


def _values(chosen: Chosen, requested: Mapping[str, str]) -> dict[str, str]:
    """What fills the names and versions of data/packages.yaml."""
    values = {name: candidate.version for name, candidate in chosen.items()}
    values["kernel_release"] = requested.get("kernel", "")
    if "driver" in chosen:
        values["branch"] = chosen["driver"].facts["branch"]
        values["driver_cuda_major"] = str(chosen["driver"].facts["cuda_major"])
    if "cuda" in chosen:
        numbers = chosen["cuda"].version.split(".")
        values |= {"cuda_major": numbers[0], "cuda_minor": ".".join(numbers[:2]), "toolkit": "-".join(numbers[:2])}
    return values


def _packages(part: Part, values: Mapping[str, str], modules: str | None, machine: Machine) -> list[Package]:
    packages = []
    for block in rows("packages"):
        if block["part"] == part and _holds(block, values, modules, machine):
            version = (block["sandbox"] if block["version"] == "*" else block["version"]).format(**values)
            for name in _names(block):
                packages.append(
                    Package(
                        name=name.format(**values), version=version, repository=block["repository"], part=part,
                        asked=name in block.get("names", []),
                    )
                )  # fmt: skip
    return packages


def _holds(block: Mapping[str, Any], values: Mapping[str, str], modules: str | None, machine: Machine) -> bool:
    part = values[component_of(block["part"])]
    # newest_first turns the order round: what is newer is smaller
    return (
        values["os"] in block.get("os", [values["os"]])
        and block.get("family") in (None, distributions.row(values["os"])["family"])
        and modules in (block.get("modules"), *((modules,) if "modules" not in block else ()))
        and (machine.subnet_manager_required or not block.get("nvlink5"))
        and ("from" not in block or newest_first(part) <= newest_first(block["from"]))
        and ("below" not in block or newest_first(part) > newest_first(block["below"]))
    )


def _framework(chosen: Chosen, name: str) -> str | None:
    if name in chosen:
        return chosen[name].version
    return next((c.facts[name] for c in chosen.values() if c.name.startswith("image ") and name in c.facts), None)


def _image(candidate: Candidate) -> Image:
    """What is known of an image; of one that nobody has a table of, only its name."""
    facts = candidate.facts
    framework_version = candidate.version if candidate.name in ("pytorch", "tensorflow") else None
    cuda = facts.get("cuda")
    return Image(
        reference=facts["reference"] if framework_version else candidate.version,
        digest="",
        pull="",
        torch=framework_version if candidate.name == "pytorch" else facts.get("pytorch"),
        tensorflow=framework_version if candidate.name == "tensorflow" else facts.get("tensorflow"),
        cuda=".".join(cuda.split(".")[:2]) if cuda else None,
        nccl=facts.get("nccl"),
        python=facts.get("python") if facts.get("maker") == "NVIDIA" else None,
        basis=("measured" if facts.get("config") else "documented")
        if cuda or framework_version or facts.get("pytorch")
        else "",
        config=facts.get("config", ""),
    )
