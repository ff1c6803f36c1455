"""What a run over any number of images shows while it computes, and at its end."""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.report import tell
from vitconvert.errors import printable

if TYPE_CHECKING:
    from vitconvert.embedding.options import Event

_SECONDS = 10  # between lines where there is no terminal


def progress(total: Callable[[], int | None], *, as_json: bool, quiet: bool) -> "Quiet":
    """What shows a run, in the way that was asked for or fits where it is shown.

    Args:
        total: Counts the images, or does not know.
        as_json, quiet: What was asked for.
    """
    if as_json:
        return _JsonLines()
    if quiet:
        return Quiet()
    return _Bar(total) if sys.stderr.isatty() else _Lines(total)


class Quiet:
    """Tells only of what went wrong."""

    def __call__(self, event: "Event") -> None:
        """Tell of it, if it is worth telling."""
        match event.what:
            case "shard" | "abandoned":
                _tell_of_shard(event, lambda text: tell(text, err=True))
            case "finished" if event.failed or event.abandoned:
                tell(_summary(event), err=True)

    def close(self) -> None:
        """There are no more events, whatever happened."""


class _JsonLines(Quiet):
    """A line of JSON for each event; images are told of once a second at most."""

    def __init__(self) -> None:
        self._images = self._failed = 0
        self._told = time.monotonic()

    def __call__(self, event: "Event") -> None:
        """Print it."""
        if event.what == "images":
            self._images += event.images
            self._failed += event.failed
            if time.monotonic() - self._told < 1:
                return
        self._told = time.monotonic()
        if self._images:
            _print({"what": "images", "images": self._images, "failed": self._failed})
            self._images = self._failed = 0
        if event.what != "images":
            _print(event.to_dict())


class _Bar(Quiet):
    """A bar on a terminal: images, how many there are, rate, failures."""

    def __init__(self, total: Callable[[], int | None]) -> None:
        self._total = total
        self._bar: Any = None
        self._failed = 0

    def __call__(self, event: "Event") -> None:
        """Show it."""
        from tqdm import tqdm

        if event.what == "begun":
            self._bar = tqdm(initial=event.known, total=self._total(), unit="image", leave=False)
        elif event.what == "images":
            self._bar.update(event.images)
            if event.failed:
                self._failed += event.failed
                self._bar.set_postfix(failed=self._failed)
        elif event.what == "finished":
            self.close()
            _tell_end(event)
        else:
            _tell_of_shard(event, lambda text: self._bar.write(text, file=sys.stderr))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


class _Lines(Quiet):
    """A line now and then, where nothing can be drawn over."""

    def __init__(self, total: Callable[[], int | None]) -> None:
        self._begun = self._told = time.monotonic()
        self._images = self._failed = 0
        self._total = total
        self._of = ""

    def __call__(self, event: "Event") -> None:
        """Print it, if it is time."""
        if event.what == "begun":
            if total := self._total():
                self._of = f" of {total - event.known:,}"
            if event.known:
                failed = f", {event.known_failed:,} of which failed" if event.known_failed else ""
                tell(f"{event.known:,} images are there already{failed}", err=True)
        elif event.what == "images":
            self._images += event.images
            self._failed += event.failed
            if time.monotonic() - self._told >= _SECONDS:
                self._told = time.monotonic()
                tell(self._line(), err=True)
        elif event.what == "finished":
            _tell_end(event)
        else:
            _tell_of_shard(event, lambda text: tell(text, err=True))

    def _line(self) -> str:
        rate = self._images / (time.monotonic() - self._begun)
        failed = f", {self._failed:,} failed" if self._failed else ""
        return f"{self._images:,}{self._of} images, {rate:.1f} a second{failed}"


def _tell_of_shard(event: "Event", say: Callable[[str], Any]) -> None:
    if event.what == "note":
        say(f"note: {printable(event.message or '')}")
    elif event.what == "abandoned":
        say(f"{printable(event.name or '')} was given up: {printable(event.message or '')}")


def _print(told: dict[str, Any]) -> None:
    click.echo(json.dumps(told))
    sys.stdout.flush()  # a pipe would keep it for later


def _tell_end(event: "Event") -> None:
    tell(_summary(event), *([event.features] if event.features and event.images else []), err=True)


def _summary(event: "Event") -> str:
    parts = [in_shards(event.images, event.shards)]
    if event.known and not event.images:
        parts = ["nothing left to compute"]
    if event.failed:
        parts.append(f"{event.failed:,} of them failed, see failed/")
    if event.known_failed:
        parts.append(f"{event.known_failed:,} failed before")
    if event.abandoned:
        parts.append(f"given up: {event.abandoned:,}")
    return "; ".join(parts)


def in_shards(images: int, shards: int) -> str:
    """How many of both, in words."""
    return f"{_counted(images, 'image')} in {_counted(shards, 'shard')}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time, as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
