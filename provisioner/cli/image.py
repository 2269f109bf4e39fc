"""`gpuprov image`: golden images, built and proven."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provisioner.cli import json_output
from provisioner.cli.confirm import confirmed
from provisioner.cli.exit import resumable
from provisioner.cli.options import Json, Sandbox, TerraformBinary, Yes
from provisioner.common.errors import GpuprovError
from provisioner.common.text import counted, printable
from provisioner.common.typed_command import typed

if TYPE_CHECKING:
    from provisioner.lifecycle.images.recipe import Recipe
    from provisioner.output.image import ImageMoveOutput

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Build golden images, prove them, and move them through channels.",
)  # fmt: skip

MOVES = 10
"""Moves of channels that `image list` shows."""
SIMULATED = " (SIMULATED: a sandbox)"
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="Path of the recipe (`gpuprov docs images`).")]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="nightly, candidate or stable.")]


def _open(file: Path, sandbox: bool | None, *, changes: bool = False) -> Recipe:
    """The recipe; without --sandbox or --no-sandbox what was built or begun, the sandbox where only that was.
    `changes`: machines or images are made or removed."""
    from provisioner.lifecycle.images import work
    from provisioner.lifecycle.images.recipe import open_recipe

    def begun(recipe: Recipe) -> bool:
        return bool(recipe.book.builds() or work.journals(recipe))

    recipe = open_recipe(file, sandbox=bool(sandbox))
    if sandbox is None and not changes and not begun(recipe):
        in_sandbox = open_recipe(file, sandbox=True)
        recipe = in_sandbox if begun(in_sandbox) else recipe
    if changes:
        recipe.cluster.require_rights()
    return recipe


@app.command()
def build(
    file: RecipeFile, sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest versions that the recipe allows, and write its lock.")
    ] = False,
) -> None:  # fmt: skip
    """Make an image of each group of the recipe, prove it on the machine that it is for, and publish it."""
    from provisioner.cli.display import display
    from provisioner.lifecycle.images import commands, virtual
    from provisioner.machines.terraform.binary import find

    recipe = _open(file, sandbox, changes=True)
    commands.refuse_unbuildable(recipe)
    screen = display(quiet=json_)
    with_what = "; ".join(
        f"{name}: a virtual machine on this computer" if virtual.is_virtual(recipe, name)
        else f"{name}: a builder, then a {recipe.cluster.spec.groups[name].machine_type()}"
        for name in recipe.targets
    )  # fmt: skip
    question = f"Build {recipe.name}{' in the sandbox' if recipe.sandbox else ''} ({with_what})?"
    if not confirmed(question, yes=yes, where=str(file), declined="nothing was built", screen=screen):
        raise typer.Exit
    with resumable(f"resume with `{typed('image build', file, sandbox=recipe.sandbox)}`"), screen as show:
        recipe.cluster.events.subscribe(show)
        manifest = commands.build(recipe, find(terraform), renew=upgrade)
    if json_:
        json_output.write(manifest.model_dump(mode="json"))
        return
    from provisioner.lifecycle.images.disk_images import folder_of

    typer.echo(f"{manifest.name} {manifest.build}")
    for name, target in manifest.targets.items():
        ids = ", ".join(f"{region}: {number}" if region else number for region, number in target.ids.items())
        proven = f"proven {counted(len(target.proven_by), 'time')}"
        driver = f", driver {target.stack.driver}" if target.stack.driver else ""
        typer.echo(f"  {name}: {target.machine}{driver}, {proven}; {ids}")
        for disk_file in target.disk.files.values() if target.disk is not None else ():
            typer.echo(f"  {name}: {folder_of(recipe, name) / disk_file.file}, {disk_file.bytes / 1e9:.1f} GB")
    onward = typed("image promote", file, sandbox=recipe.sandbox)
    typer.echo(f"channel nightly has it now; `{onward} candidate` moves it on")


@app.command()
def nightly(
    files: Annotated[list[Path], typer.Argument(metavar="RECIPE…", help="Recipes, done one after the other.")],
    sandbox: Sandbox = None, json_: Json = False, terraform: TerraformBinary = None,
    force: Annotated[bool, typer.Option("--force", help="Build also where nothing has changed.")] = False,
    jitter: Annotated[
        int, typer.Option("--jitter", min=0, max=86400, metavar="SECONDS", help="Wait up to so long first.")
    ] = 0,
) -> None:  # fmt: skip
    """Build every recipe in which something has changed: versions, base images, roles, the recipe. Asks nothing."""
    import random
    import time

    from provisioner.cli.display import display
    from provisioner.common.errors import Exit
    from provisioner.lifecycle.images import nightly as nights
    from provisioner.machines.terraform.binary import find

    time.sleep(random.uniform(0, jitter))  # noqa: S311 (spreads fleets in time, hides nothing)
    with display(quiet=json_) as show:

        def opened(file: Path) -> Recipe:
            recipe = _open(file, sandbox, changes=True)
            recipe.cluster.events.subscribe(show)
            return recipe

        done = nights.run(files, opened, lambda: find(terraform), force=force)
    failed = [night for night in done if night.outcome == "failed"]
    if json_:
        from provisioner.output.image import ImageNightlyOutput

        json_output.write(ImageNightlyOutput(ok=not failed, nights=[night.output() for night in done]))
    else:
        for night in done:
            new = f": {', '.join(night.changed)}" if night.changed else ""
            typer.echo(" ".join(filter(None, (f"{night.image}: {night.outcome}", night.build))) + new)
    for night in failed:
        typer.echo(f"gpuprov: {night.image} failed at {night.step}: {night.message}", err=True)
        if night.page:
            typer.echo(f"  {night.page}", err=True)
        if night.alerted:
            typer.echo(f"  {night.alerted}", err=True)
    if failed:
        raise typer.Exit(Exit.CHECK_FAILED)


@app.command("list")
def list_(file: RecipeFile, sandbox: Sandbox = None, json_: Json = False) -> None:
    """Show the builds of a recipe, and which channel has which."""
    from provisioner.lifecycle.images import commands, work

    recipe = _open(file, sandbox)
    document, begun = commands.overview(recipe), work.unfinished(recipe)
    if json_:
        json_output.write(document)
        return
    for row in document.builds:
        drivers = ", ".join(sorted({driver for driver in row.driver.values() if driver}))
        typer.echo(f"{row.build}  {', '.join(row.channels) or '-':20}  driver {drivers or 'none'}")
    for failure in document.failed:
        first_line = (printable(failure.message).splitlines() or ["it said nothing"])[0]
        typer.echo(f"{failure.build}  failed at {failure.step}: {first_line}  ({failure.evidence})")
    for move in document.history[-MOVES:]:
        typer.echo(f"{move.at}  {move.channel}: {move.before or 'none'} → {move.build} ({move.why})")
    for build_id in begun:
        goes_on = typed("image build", file, sandbox=recipe.sandbox)
        typer.echo(f"{build_id}  begun, and not finished yet: `{goes_on}` goes on where it was cut off")
    for build_id in recipe.book.withdrawn():
        goes_on = typed("image prune", file, sandbox=recipe.sandbox)
        typer.echo(f"{build_id}  being removed: `{goes_on}` removes the rest")
    if not document.builds and not document.failed and not begun:
        how = typed("image build", file, sandbox=recipe.sandbox)
        typer.echo(f"{document.image} was never built: `{how}` builds it")
    elif recipe.sandbox:
        typer.echo(f"{document.image}{SIMULATED}")


@app.command()
def show(
    file: RecipeFile, reference: Annotated[str, typer.Argument(metavar="CHANNEL|BUILD")], sandbox: Sandbox = None,
    json_: Json = False,
) -> None:  # fmt: skip
    """Show what is in a build: versions, ids, proofs."""
    from provisioner.lifecycle.images import commands

    document = commands.show(_open(file, sandbox), reference)
    if json_:
        json_output.write(document)
        return
    typer.echo("\n".join(str(printable(line)) for line in _render(document)))


def _render(document: dict[str, Any]) -> list[str]:
    simulated = SIMULATED if document["simulated"] else ""
    lines = [f"{document['name']} {document['build']}, proven {document['made']}{simulated}"]
    for name, target in document["targets"].items():
        versions = ", ".join(
            key
            if key.endswith(component["version"])
            else f"{key} {component['version']}"  # an image's name has its version
            for key, component in target["stack"]["components"].items()
        )
        lines += [
            f"{name}: {target['machine']}, built on {target['builder']} of {target['base'] or 'an unknown base'}",
            f"  {versions}",
            f"  {counted(len(target['packages']), 'package')}, kernel {target['kernel']}",
            *(f"  {region or target['provider']}: {number}" for region, number in target["ids"].items()),
            *(f"  {proof['report']}: {counted(proof['passed'], 'check')} passed" for proof in target["proofs"]),
            *_of_disk(target["disk"]),
            f"  known vulnerabilities: {_vulnerable(target)}",
        ]
    return lines


def _of_disk(disk: dict[str, Any] | None) -> list[str]:
    if disk is None:
        return []
    files = [
        f"  {disk_file['file']}: {disk_file['bytes'] / 1e9:.1f} GB, sha256 {disk_file['sha256']}"
        for disk_file in disk["files"].values()
    ]
    boots = [f"  {proof['report']}: {proof['passed']} parts as locked" for proof in disk["proofs"]]
    return [*files, *boots]


def _vulnerable(target: dict[str, Any]) -> str:
    from provisioner.lifecycle.images.manifest import Vulnerabilities
    from provisioner.lifecycle.images.vulnerabilities import summary_line

    document = target["vulnerabilities"]
    return summary_line(Vulnerabilities(**document) if document is not None else None, target["not_scanned"])


@app.command()
def diff(
    file: RecipeFile, before: Annotated[str, typer.Argument(metavar="BEFORE", help="A channel or a build.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="A channel or a build.")] = "nightly",
    sandbox: Sandbox = None, json_: Json = False,
) -> None:  # fmt: skip
    """Show what differs between two builds: versions, packages, base images, roles."""
    from provisioner.lifecycle.images import commands

    document = commands.compare(_open(file, sandbox), before, after)
    if json_:
        json_output.write(document)
        return
    for row in document.differences:
        old, new = row.before or "none", row.after or "none"
        typer.echo(printable(f"{row.target}: {row.what} {row.name}: {old} → {new}"))
    if not document.differences:
        typer.echo(f"{document.before} and {document.after} have the same in them")


@app.command()
def promote(
    file: RecipeFile, channel: Channel,
    build: Annotated[str | None, typer.Argument(metavar="[BUILD]", help="Default: what the channel below has.")] = None,
    sandbox: Sandbox = None, json_: Json = False,
) -> None:  # fmt: skip
    """Move a channel on: candidate takes what nightly has, stable what candidate has."""
    from provisioner.lifecycle.images import commands

    recipe = _open(file, sandbox)
    _moved(commands.promote(recipe, channel, build), as_json=json_, simulated=recipe.sandbox)


@app.command()
def rollback(file: RecipeFile, channel: Channel, sandbox: Sandbox = None, json_: Json = False) -> None:
    """Move a channel back to the build that it had before."""
    from provisioner.lifecycle.images import commands

    recipe = _open(file, sandbox)
    _moved(commands.rollback(recipe, channel), as_json=json_, simulated=recipe.sandbox)


def _moved(document: ImageMoveOutput, *, as_json: bool, simulated: bool) -> None:
    if as_json:
        json_output.write(document)
    else:
        change = f"{document.before or 'none'} → {document.build}"
        if document.before == document.build:
            change = f"{document.build} already"
        typer.echo(f"{document.image}@{document.channel}: {change}{SIMULATED if simulated else ''}")


@app.command()
def prune(
    file: RecipeFile,
    locks: Annotated[
        list[Path] | None, typer.Argument(metavar="[LOCK]…", help="cluster.lock files whose images have to stay.")
    ] = None,
    sandbox: Sandbox = None, yes: Yes = False, json_: Json = False, terraform: TerraformBinary = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Of a sandbox: its channels end, and its newest builds go, too.")
    ] = False,
) -> None:  # fmt: skip
    """Remove old builds; none that a channel, one of these locks or a machine uses."""
    from provisioner.lifecycle.images import commands
    from provisioner.lifecycle.images.prune import named_by
    from provisioner.machines.terraform.binary import find

    recipe = _open(file, sandbox, changes=True)
    if sandbox is None and not recipe.book.builds() and (in_sandbox := _open(file, None)).sandbox:
        raise GpuprovError(
            f"{recipe.name} was built in the sandbox alone", where=str(file),
            hint=f"`{typed('image prune', file, sandbox=in_sandbox.sandbox)}`",
        )  # fmt: skip
    named_by(recipe, locks or ())  # one that cannot be read is said before anybody is asked
    question = f"Remove builds of {recipe.name} but the newest {recipe.settings.keep} and what is used?"
    if everything:
        question = f"Remove all builds and channels of {recipe.name} but what machines or locks use?"
    if not confirmed(question, yes=yes, where=str(file), declined="nothing was removed", screen=None):
        raise typer.Exit
    document = commands.prune(recipe, find(terraform), locks or (), everything=everything)
    if json_:
        json_output.write(document)
        return
    typer.echo(f"removed: {', '.join(document.removed) or 'none'}")
    for row in document.kept:
        typer.echo(f"kept: {row.build}: {row.why}")
