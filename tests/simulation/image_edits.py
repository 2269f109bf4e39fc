"""What people do to a recipe between builds, and what happens to the world; each is drawn by numbers below a count."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.image_recipe import DRIVERS, RecipeText
from tests.simulation.image_world import ImageWorld

Pick = Callable[[int], int]
EDITS: dict[str, Callable[[RecipeText, Pick], str]] = {}
"""Name → what changes the recipe; gives what was done, in words."""
EVENTS: dict[str, Callable[[ImageWorld, Pick], str]] = {}
"""Name → what happens; gives it in words, or nothing where nothing did."""
DAY_S = 86400.0


def edit(call: Callable[[RecipeText, Pick], str]) -> Callable[[RecipeText, Pick], str]:
    EDITS[call.__name__] = call
    return call


def event(call: Callable[[ImageWorld, Pick], str]) -> Callable[[ImageWorld, Pick], str]:
    EVENTS[call.__name__] = call
    return call


@edit
def copies(text: RecipeText, pick: Pick) -> str:
    text.copies = ((), (1,), (1, 2), (2,))[pick(4)]
    return f"copy_to has {len(text.copies)} regions"


@edit
def region(text: RecipeText, pick: Pick) -> str:
    text.home = pick(3)
    return f"the site is in {text.region}"


@edit
def group_added(text: RecipeText, pick: Pick) -> str:
    text.groups = ("p4d", "p5")
    return "group p5 is added"


@edit
def group_removed(text: RecipeText, pick: Pick) -> str:
    text.groups = (text.groups[pick(len(text.groups))],)
    return f"group {text.groups[0]} alone is left"


@edit
def provider(text: RecipeText, pick: Pick) -> str:
    text.provider = ("aws", "azure")[pick(2)]
    return f"the site is at {text.provider}"


@edit
def keep(text: RecipeText, pick: Pick) -> str:
    text.keep = 1 + pick(3)
    return f"image.keep: {text.keep}"


@event
def driver_released(world: ImageWorld, pick: Pick) -> str:
    """Or taken back."""
    world.inputs.driver = DRIVERS[pick(len(DRIVERS))]
    return f"driver {world.inputs.driver} is the newest"


@event
def base_image_released(world: ImageWorld, pick: Pick) -> str:
    world.inputs.base += 1
    return "the cloud has a newer base image"


@event
def gpuprov_upgraded(world: ImageWorld, pick: Pick) -> str:
    world.inputs.roles = pick(3)
    return f"gpuprov has roles {world.inputs.roles}"


@event
def clock_jumps(world: ImageWorld, pick: Pick) -> str:
    """The computer's clock is ahead, behind, or set right; it may show a time that it has shown before."""
    world.skew = (0.0, 400 * DAY_S, -400 * DAY_S, -world.clock)[pick(4)]
    return f"the computer's clock shows {world.time():%Y-%m-%d %H:%M:%S}"


@event
def hours_pass(world: ImageWorld, pick: Pick) -> str:
    hours = 1 + pick(48)
    world.clock += hours * 3600.0
    return f"{hours} hours pass"


@event
def images_are_slow(world: ImageWorld, pick: Pick) -> str:
    """How long an image is in the making; 10,000 s are more than gpuprov waits."""
    world.cloud.seconds = (20.0, 600.0, 10000.0)[pick(3)]
    return f"an image takes {world.cloud.seconds:.0f} s"


@event
def image_fails(world: ImageWorld, pick: Pick) -> str:
    world.cloud.defect = "internal error"
    return "the next image that is made fails"


@event
def fleet_machine_is_gone(world: ImageWorld, pick: Pick) -> str:
    if not world.cloud.fleet:
        return ""
    number = sorted(world.cloud.fleet)[pick(len(world.cloud.fleet))]
    del world.cloud.fleet[number]
    return f"{number} of the fleet is gone"


@event
def fleet_is_removed(world: ImageWorld, pick: Pick) -> str:
    world.cloud.fleet.clear()
    if not world.lock.exists():
        return ""
    world.lock.unlink()
    return "the fleet and its lock are removed"
