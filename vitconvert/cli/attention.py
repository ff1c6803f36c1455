"""`vitconvert attention MODEL IMAGE... -o DIR|page.html|maps.png`."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    AGAINST,
    checkpoint_against,
    named_output,
    reading_options_of,
    refuse_given,
    require_against,
)
from vitconvert.cli.photographs import (
    FailureCount,
    image_options,
    named_checkpoint,
    named_images,
    parse_preprocessing,
    reported,
)
from vitconvert.cli.report import tell
from vitconvert.errors import UsageError, printable

if TYPE_CHECKING:
    from vitconvert.checkpoint import Checkpoint
    from vitconvert.pictures.seen import Unseen
    from vitconvert.pictures.view import Choice, View
    from vitconvert.preprocessing import Preprocessing

_DTYPE = "float32"  # what maps are computed in

_HELP = """{summary}

IMAGES are files, folders, quoted patterns ("photos/**/*.jpg"), or - for a list of paths on stdin.
A name that ends in .html becomes one page that needs nothing else, in which you point at a patch
and see what it attends to; in .png one picture, or a sheet of several; any other name a directory
with a picture for each map, at the image's own size. Blocks, heads, registers, rows and
columns are counted from 0.
"""


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=_HELP.format(summary=help_text), short_help=help_text)
    @click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        callback=named_output,
        help="A directory, PAGE.html or MAPS.png; not needed with --json.",
    )
    @click.option(
        "--layers", metavar="last|all|3,5", help="Which blocks; default: last, or all in a page."
    )
    @click.option(
        "--heads",
        metavar="mean|all|0,2",
        help="Which heads; default: the mean over all, or each in a page.",
    )
    @click.option(
        "--query",
        help="What attends: class, distillation, register:0, patch:ROW,COLUMN, mean (over patches) "
        "or pooling (of a model that pools by attention); default: class, or what there is.",
    )
    @click.option("--rollout", is_flag=True, help="Attention through all blocks.")
    @click.option("--raw", is_flag=True, help="Maps alone, patch by patch, not over images.")
    @click.option(
        "--features",
        is_flag=True,
        help="Also the features: components as colours, norms, similarity to the --query patch.",
    )
    @click.option(
        "--foreground",
        metavar="0..1|all",
        help="With --features: where the first component begins to be foreground; default: found.",
    )
    @click.option("--against", metavar="MODEL", help="Another model, beside the first in a page.")
    @click.option("--force", is_flag=True, help="Replace an earlier output.")
    @image_options
    @reading_options_of(AGAINST)
    def attention(**options: Any) -> int:
        return _attention(options)

    return attention


def _attention(options: dict[str, Any]) -> int:
    from vitconvert.pictures.view import Choice

    output: Path | None = options["output"]
    page = output is not None and output.suffix.lower() in (".html", ".htm")
    _check(options, output, page=page)
    choice = Choice.parse(
        layers=options["layers"],
        heads=options["heads"],
        query=options["query"],
        rollout=options["rollout"],
        raw=options["raw"],
    )
    failures = FailureCount()
    views = _views(options, choice, everything=page)
    seen = reported(views, options, failures, printing=output is None)
    good = _readable(seen, as_json=options["as_json"])
    first = next(good, None)
    if first is None:
        if output:
            tell(f"There are no maps, so {output} is not written.", err=True)
        return failures.exit_code
    _write(output, chain([first], good), choice, options)
    if output and not options["quiet"]:
        tell(f"written: {output}", err=True)
    return failures.exit_code


def _check(options: dict[str, Any], output: Path | None, *, page: bool) -> None:
    """Before anything is downloaded."""
    from vitconvert.conversion.output import check_output
    from vitconvert.pages import check_file
    from vitconvert.pictures.files import is_picture

    if output is None and not options["as_json"]:
        raise UsageError(
            "Nothing says where the maps go.",
            hint="-o page.html, -o maps.png or -o DIR; or --json.",
        )
    if options[AGAINST] and not page:
        raise UsageError("--against shows two models side by side in a page: -o page.html.")
    if not options[AGAINST]:
        require_against(options, "--against is missing")
    if options["foreground"] and not options["features"]:
        raise UsageError("--foreground is for --features.")
    if page:
        refuse_given(["raw"], "is about pictures, and a page lays maps over images")
    if output is None:
        refuse_given(["raw"], "is about pictures, and none is written")
        return
    if page or is_picture(output):
        check_file(output, overwrite=options["force"])
    else:
        check_output(output, overwrite=options["force"])


def _write(
    output: Path | None, views: "Iterator[View]", choice: "Choice", options: dict[str, Any]
) -> None:
    from vitconvert.conversion.output import whole_output
    from vitconvert.pictures.files import is_picture, write_page, write_pictures, write_sheet

    told = _told(views, choice, options)
    if output is None:
        for _ in told:
            pass
    elif output.suffix.lower() in (".html", ".htm"):
        heads = choice.heads if options["heads"] else None
        title = f"Attention of {_shown(options['model'])}"
        force = options["force"]
        write_page(output, told, heads, query=choice.query, title=title, overwrite=force)
    elif is_picture(output):
        write_sheet(output, told, choice, overwrite=options["force"])
    else:
        with whole_output(output, overwrite=options["force"]) as directory:
            write_pictures(directory, told, choice)


def _readable(seen: "Iterable[View | Unseen]", *, as_json: bool) -> "Iterator[View]":
    """The images that were read; in JSON, the others are told of too."""
    from vitconvert.pictures.seen import Unseen

    for view in seen:
        if not isinstance(view, Unseen):
            yield view
        elif as_json:
            click.echo(json.dumps(view.to_dict()))


def _told(views: "Iterable[View]", choice: "Choice", options: dict[str, Any]) -> "Iterator[View]":
    """Pass views on, and print what they show."""
    for view in views:
        if options["as_json"]:
            click.echo(json.dumps(choice.to_dict(view)))
        elif not options["quiet"]:
            click.echo("\n".join(map(printable, choice.summary(view))))
        yield view


def _views(
    options: dict[str, Any], choice: "Choice", *, everything: bool
) -> "Iterator[View | Unseen]":
    """Each image as each model sees it."""
    from vitconvert.preprocessing.finding import find_images

    checkpoint = named_checkpoint({**options, "dtype": _DTYPE})
    found = list(find_images(named_images(options), recursive=options["recursive"]))
    layers = None if everything and not options["layers"] else choice.layers
    models = [(checkpoint, parse_preprocessing(options, lambda: checkpoint), options["model"])]
    if options[AGAINST]:
        other = checkpoint_against({**options, "dtype": _DTYPE})
        models.append((other, None, options[AGAINST]))
    streams = [_seen(options, found, layers, *model) for model in models]
    return chain.from_iterable(zip(*streams, strict=True))


def _seen(
    options: dict[str, Any],
    images: list[Any],
    layers: int | list[int] | None,
    checkpoint: "Checkpoint",
    preprocessing: "Preprocessing | None",
    name: str,
) -> "Iterator[View | Unseen]":
    from vitconvert.api import attention_maps, feature_maps
    from vitconvert.pictures.features import FeatureMaps
    from vitconvert.pictures.maps import AttentionMaps
    from vitconvert.pictures.view import View

    shared: dict[str, Any] = {"preprocessing": preprocessing, "device": options["device"]}
    found = attention_maps(checkpoint, images, layers=layers, **shared)
    features: Iterable[Any] = repeat(None)
    if options["features"]:
        features = feature_maps(checkpoint, images, **_foreground(options), **shared)
    model = _shown(name) if options[AGAINST] else ""
    for maps, feature in zip(found, features, strict=False):
        if not isinstance(maps, AttentionMaps):
            yield maps
        elif feature is None or isinstance(feature, FeatureMaps):
            yield View(maps=maps, features=feature, model=model)
        else:
            yield feature


def _foreground(options: dict[str, Any]) -> dict[str, Any]:
    stated = options["foreground"]
    if stated == "all":
        return {"background": False}
    try:
        return {"foreground": None if stated is None else float(stated)}
    except ValueError:
        raise click.BadParameter(
            f"{stated!r} is neither a number nor all.", param_hint="--foreground"
        ) from None


def _shown(reference: str) -> str:
    from vitconvert.sources.references import without_secrets

    return without_secrets(reference)
