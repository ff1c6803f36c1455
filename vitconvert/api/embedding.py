"""Features and classes of any number of images."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath
from typing import Unpack

from vitconvert.api.inference import engines_for
from vitconvert.api.loading import Size
from vitconvert.arguments import LOCATED, PLACES, checked, split
from vitconvert.checkpoint import ReadArguments, ReadOptions
from vitconvert.embedding import require_package
from vitconvert.embedding.options import DatasetArguments, Event, RunOptions
from vitconvert.inference.options import ComputeOptions, FeatureOptions
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import Located


@checked(model=LOCATED, source=PLACES)
@plain_arithmetic()
def embed_dataset(
    model: str | PathLike[str] | Located,
    source: "str | PathLike[str] | Iterable[str | PathLike[str]]",
    output: str | PathLike[str],
    preprocessing: Preprocessing | None = None,
    *,
    image_size: Size | None = None,
    computed: str = "features",
    recursive: bool = False,
    keep: Sequence[str] = (),
    image_column: str | None = None,
    labels: Sequence[str] | None = None,
    topk: int = 5,
    notify: Callable[[Event], None] | None = None,
    reading: ReadArguments | None = None,
    **how: Unpack[DatasetArguments],
) -> Event:
    """Compute features or classes of any number of images, and write them as Parquet files.

    If a run was interrupted, the next one continues: it computes only the images that `output`
    lacks. Each file (a shard) is written atomically. Memory does not grow with the number of
    images. Needs the extra `scale` (pyarrow). The engine "ray" needs the extra `ray`.

    Args:
        model: A path or a reference, as for `load_model`.
        source: One or several of: a folder, a file, a pattern, a tar of WebDataset, a Parquet file
            with images (of Hugging Face datasets), a URL of pyarrow such as s3://bucket/photos.
        output: A directory, or a URL of an object store.
        preprocessing: By default, that of `reading` or the checkpoint's own.
        image_size: As for `embed`.
        computed: "features", "tokens" or "projected", as for `embed`, or "classes".
        recursive: Search subfolders too. The first subfolder becomes the column "class".
        keep: Columns of Parquet sources, or files of WebDataset samples, that are kept.
        image_column: The column of images in Parquet sources, if it is not clear.
        labels, topk: For classes, as for `predict`.
        notify: Called for each `embedding.options.Event`.
        reading: How to read the checkpoint: `ReadArguments` lists these options.
        how: Which features, how images go through the model, and how the run goes:
            `FeatureArguments`, `ComputeArguments` and `RunArguments` list these options.

    Returns:
        How many images were computed, and how many failed.

    Raises:
        MissingPackage: pyarrow, or ray, is not installed.
        ConflictingFact: `output` has features of another model, preprocessing or source.
        OutputExists: Another run is writing there, or this function did not write it.
        VitConvertError: One of the errors of `embed`.

    Example:
        >>> finished = vitconvert.embed_dataset("my-vit", "photos", "features")
        >>> finished.images, finished.failed
        (10, 0)
    """
    require_package("pyarrow")
    from vitconvert.embedding.embedder import Task
    from vitconvert.embedding.run import run
    from vitconvert.embedding.sources import Sources

    which, others = split(how, FeatureOptions)
    options, others = split(others, ComputeOptions)
    course = RunOptions(**others)
    task = Task(
        model=model,
        computed=computed,
        reading=ReadOptions.of(reading or {}).sized(image_size),
        preprocessing=preprocessing,
        topk=topk,
        labels=labels,
        which=which,
        computing=options,
        make_engine=engines_for(options, None),
    )
    places = [source] if isinstance(source, str | PathLike) else source
    sources = Sources(
        given=[fspath(place) for place in places],
        recursive=recursive,
        keep=keep,
        image_column=image_column,
    )
    return run(task.settled(), sources, fspath(output), course, notify or (lambda _event: None))
