"""Bugs in golden images that are planted on purpose: the simulation has to find each."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

from provisioner.lifecycle.images import failure, work
from provisioner.lifecycle.images.book import Book
from tests.simulation.planted import Plant


def published_is_unfinished() -> contextlib.AbstractContextManager[Any]:
    """A build that was killed after its manifest was written counts as unfinished, and is removed as one."""
    return mock.patch.object(Book, "is_published", lambda *_: False)


def images_before_the_manifest() -> contextlib.AbstractContextManager[Any]:
    """`prune` removes the images of a build that the book still has."""
    return mock.patch.object(Book, "withdraw", Book.manifest)


def forgotten_snapshots() -> contextlib.AbstractContextManager[Any]:
    """The ids of images that are being removed are written down nowhere."""

    def delete_images(build: work.Build, name: str, images: Any, ids: Any) -> None:
        if ids:
            images.delete(ids, work.tags_of(build, name))

    return mock.patch.object(failure, "delete_images", delete_images)


IMAGE_PLANTS: tuple[Plant, ...] = (published_is_unfinished, images_before_the_manifest, forgotten_snapshots)
