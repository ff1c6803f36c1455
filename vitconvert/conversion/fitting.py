"""A checkpoint on its way out: what is asked of a conversion, and the target that holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitconvert.checkpoint import Checkpoint
from vitconvert.conversion.changes import NO_CHANGES, Changes
from vitconvert.conversion.families import names_of, with_family
from vitconvert.conversion.targets import choose_gauged_target
from vitconvert.conversion.text_tower import with_text, with_tokenizer, without_text
from vitconvert.conversion.weights import with_frames
from vitconvert.facts.gauges import Gauge
from vitconvert.facts.target import Target
from vitconvert.formats import TensorInfo
from vitconvert.programs import CompanionFiles, DescribedModel, program_of
from vitconvert.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What to make of a checkpoint.

    Attributes:
        to: Target ecosystem or dialect, or a table of the user's.
        changes: What to change on the way.
        allow: Names of steps that the target may need.
        image_only: Leave a text tower behind.
        max_shard_size: Of a file of weights, as `weights.parse_size` reads it; None: one file.
    """

    to: str | Table
    changes: Changes = NO_CHANGES
    allow: Sequence[str] = ()
    image_only: bool = False
    max_shard_size: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A checkpoint, and the target that holds its function.

    Attributes:
        source: The checkpoint, with its text tower if that goes along.
        target: Where it goes, once the steps are taken.
        gauges: The steps, in their order.
        passed_over: Other dialects of the target's ecosystem, and why they cannot hold it.
    """

    source: Checkpoint
    target: Target
    gauges: tuple[Gauge, ...]
    passed_over: Mapping[str, str]


def fit(source: Checkpoint, options: WriteOptions) -> Fitted:
    """Choose the target of a checkpoint that is changed already.

    Raises:
        NotRepresentable: None of those that are meant computes this function.
        UsageError: There is no such target, or no such step.
    """
    source = without_text(source) if options.image_only else with_tokenizer(source)
    model = describe(source)
    target, gauges, passed_over = choose_gauged_target(options.to, model, options.allow)
    source = with_family(with_frames(with_text(source, target), target), target, model)
    return Fitted(source=source, target=target, gauges=gauges, passed_over=passed_over)


def describe(source: Checkpoint) -> DescribedModel:
    """What a target has to represent."""
    return DescribedModel(
        config=source.config,
        preprocessing=source.preprocessing,
        labels=source.labels,
        dialect=source.dialect,
        name=source.located.name,
        their_config=source.their_config,
        text=source.text.described if source.text else None,
        called=names_of(source),
    )


def companions_for(
    target: Target, source: Checkpoint, infos: Mapping[str, TensorInfo]
) -> CompanionFiles:
    """The small files beside weights of these dtypes."""
    dtypes = {info.dtype for info in infos.values()}
    return program_of(target.table).companions(target, source.preprocessing, dtypes)
