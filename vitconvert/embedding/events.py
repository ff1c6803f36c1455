"""What happens in a run, told as it happens, and counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitconvert.embedding.shard import ShardReport
from vitconvert.embedding.units import Unit
from vitconvert.errors import VitConvertError


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a run.

    Attributes:
        what: "planned", "note", "images", "shard", "abandoned" or "finished".
        images, failed: How many: to compute, for "planned"; since the last event, for "images";
            of the unit, for "shard"; of the run, for "finished".
        changed: How many of them are other files than when the plan was made.
        shards: How many there are to compute, or were computed.
        known, known_failed: Images of shards that were there before, and those that failed.
        abandoned: Shards that were given up.
        number: Of the unit.
        message: Of a note, what should be known; why a shard was given up.
        shape: What an image became, for "finished".
    """

    what: str
    images: int = 0
    failed: int = 0
    changed: int = 0
    shards: int = 0
    known: int = 0
    known_failed: int = 0
    abandoned: int = 0
    number: int | None = None
    message: str | None = None
    shape: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, without what says nothing."""
        return {name: value for name, value in vars(self).items() if value is not None}


Notify = Callable[[Event], None]


class TooManyFailures(VitConvertError):
    """More images failed than are allowed."""

    code = "too-many-failures"


class Totals:
    """What became of a run so far.

    Args:
        notify: Is told what happens.
        max_errors: How many images may fail; None: all.
    """

    def __init__(self, notify: Notify, max_errors: int | None) -> None:
        self._notify = notify
        self._max_errors = max_errors
        self._images = self._failed = self._changed = self._shards = self._abandoned = 0

    def images(self, done: int, failed: int) -> None:
        """Images were computed.

        Raises:
            TooManyFailures: So it is.
        """
        self._images += done
        self._failed += failed
        self._notify(Event(what="images", images=done, failed=failed))
        if self._max_errors is not None and self._failed > self._max_errors:
            raise TooManyFailures(
                f"{self._failed} images failed, and {self._max_errors} may.",
                hint="finished shards are kept; failed/ says why images of theirs failed."
                if self._shards
                else "--max-errors allows more, and failed/ then says why they did.",
            )

    def shard(self, report: ShardReport) -> None:
        """A shard was written."""
        self._shards += 1
        self._changed += report.changed
        self._notify(
            Event(
                what="shard",
                number=report.number,
                images=report.rows,
                failed=report.failed,
                changed=report.changed,
            )
        )

    def abandoned(self, unit: Unit, message: str) -> None:
        """A shard was given up."""
        self._abandoned += 1
        self._notify(Event(what="abandoned", number=unit.number, images=unit.rows, message=message))

    def finished(self, known: int, known_failed: int) -> Event:
        """The run is over."""
        return Event(
            what="finished",
            known=known,
            known_failed=known_failed,
            images=self._images,
            failed=self._failed,
            changed=self._changed,
            shards=self._shards,
            abandoned=self._abandoned,
        )
