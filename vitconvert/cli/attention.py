"""`vitconvert attention MODEL IMAGE... -o DIR|page.html|maps.png`."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vitconvert.cli.images import ABOUT_IMAGES, Images
from vitconvert.cli.options import Against, Reporting, flag, output_flag, refuse_given
from vitconvert.cli.report import tell
from vitconvert.errors import UsageError, printable, without_secrets

if TYPE_CHECKING:
    from PIL import Image

    from vitconvert.checkpoint import Checkpoint
    from vitconvert.pictures.seen import Unseen
    from vitconvert.pictures.view import View, ViewChoice


@dataclass(kw_only=True)
class ShowAttention(Images, Against):
    """Shows what a model attends to."""

    heading = Reporting.heading
    details = f"""{ABOUT_IMAGES}
A name that ends in .html becomes one page that needs nothing else, in which you point at a patch
and see what it attends to; in .png one image, or a sheet of several; any other name a directory
with an image for each map, at the image's own size. Blocks, heads, registers, rows and
columns are counted from 0.
"""

    output: Path | None = output_flag("A directory, PAGE.html or MAPS.png; not needed with --json.")
    layers: str | None = flag(
        "Which blocks; default: last, or all in a page.", metavar="last|all|3,5"
    )
    heads: str | None = flag(
        "Which heads; default: the mean over all, or each in a page.", metavar="mean|all|0,2"
    )
    query: str | None = flag(
        "What attends: class, distillation, register:0, patch:ROW,COLUMN, mean (over patches) or "
        "pooling (of a model that pools by attention); default: class, or what there is."
    )
    rollout: bool = flag("Attention through all blocks.", default=False)
    raw: bool = flag("Only the maps, patch by patch, not over images.", default=False)
    features: bool = flag(
        "Also the features: components as colours, norms, similarity to the --query patch.",
        default=False,
    )
    foreground: str | None = flag(
        "With --features: where the first component begins to be foreground; default: found.",
        metavar="0..1|all",
    )
    against: str | None = flag("Another model, shown beside the first in a page.", metavar="MODEL")
    force: bool = flag("Replace an earlier output.", default=False)
    dtype: str | None = "float32"  # what maps are computed in

    @property
    def in_page(self) -> bool:
        """Whether the output is a page, in which all blocks and heads are explored."""
        return self.output is not None and self.output.suffix.lower() in (".html", ".htm")

    @property
    def _name(self) -> str:
        """What the model is called, without the folders of this machine."""
        there = Path(self.model)
        return there.name if there.exists() else without_secrets(self.model)

    def run(self) -> int:
        from vitconvert.pictures.view import ViewChoice

        self._check()
        choice = ViewChoice.parse(
            layers=self.layers,
            heads=self.heads,
            query=self.query,
            rollout=self.rollout,
            raw=self.raw,
        )
        seen = self.reported(self._views(choice), printing=self.output is None)
        views = self._printed(seen, choice)
        first = next(views, None)
        if first is None:
            if self.output:
                tell(f"There are no maps, so {self.output} is not written.", err=True)
            return self.exit_code
        self._write(chain([first], views), choice)
        if self.output and not self.quiet:
            tell(f"written: {self.output}", err=True)
        return self.exit_code

    def _check(self) -> None:
        """Refuse what cannot be before anything is downloaded."""
        from vitconvert.conversion.output import check_output
        from vitconvert.pages import check_file
        from vitconvert.pictures.files import is_picture

        if self.output is None and not self.as_json:
            raise UsageError(
                "No output is named for the maps.",
                hint="-o page.html, -o maps.png or -o DIR; or --json.",
            )
        if self.against and not self.in_page:
            raise UsageError("--against shows two models side by side in a page: -o page.html.")
        if not self.against:
            self.require_against("--against is missing")
        if self.foreground and not self.features:
            raise UsageError("--foreground is for --features.")
        if self.in_page:
            refuse_given(["raw"], "is for images, and a page shows maps over the photos")
        if self.output is None:
            refuse_given(["raw"], "is for images, and none is written")
        elif self.in_page or is_picture(self.output):
            check_file(self.output, overwrite=self.force)
        else:
            check_output(self.output, overwrite=self.force)

    def _views(self, choice: "ViewChoice") -> "Iterator[View | Unseen]":
        """Each image as each model sees it."""
        from vitconvert.preprocessing.finding import find_images

        checkpoint = self.load_checkpoint()
        images = list(find_images(self.named_images(), recursive=self.recursive))
        layers = None if self.in_page and not self.layers else choice.layers
        models = [(self.model, checkpoint)]
        if self.against:
            models.append((self.against, self.checkpoint_against()))
        streams = [self._seen(images, layers, *model) for model in models]
        return chain.from_iterable(zip(*streams, strict=True))

    def _seen(
        self,
        images: "list[Path | Image.Image]",
        layers: int | list[int] | None,
        name: str,
        checkpoint: "Checkpoint",
    ) -> "Iterator[View | Unseen]":
        from vitconvert.api import attention_maps, feature_maps
        from vitconvert.pictures.features import FeatureMaps
        from vitconvert.pictures.maps import AttentionMaps
        from vitconvert.pictures.view import View

        attention = attention_maps(checkpoint, images, layers=layers, **self.compute)
        features: Iterable[FeatureMaps | Unseen | None] = repeat(None)
        if self.features:
            try:
                known = None if self.foreground in (None, "all") else float(str(self.foreground))
            except ValueError:
                wanted = f"{self.foreground!r} is neither a number nor all."
                raise click.BadParameter(wanted, param_hint="--foreground") from None
            features = feature_maps(
                checkpoint,
                images,
                foreground=known,
                background=self.foreground != "all",
                **self.compute,
            )
        model = without_secrets(name) if self.against else ""
        for maps, feature in zip(attention, features, strict=False):
            if not isinstance(maps, AttentionMaps):
                yield maps
            elif feature is None or isinstance(feature, FeatureMaps):
                yield View(maps=maps, features=feature, model=model)
            else:
                yield feature

    def _printed(self, seen: "Iterable[View | Unseen]", choice: "ViewChoice") -> "Iterator[View]":
        """The images that were read, when they have been printed; in JSON, the others too."""
        from vitconvert.pictures.seen import Unseen

        for view in seen:
            if isinstance(view, Unseen):
                if self.as_json:
                    click.echo(json.dumps(view.to_dict()))
                continue
            if self.as_json:
                click.echo(json.dumps(choice.to_dict(view)))
            elif not self.quiet:
                click.echo("\n".join(map(printable, choice.summary(view))))
            yield view

    def _write(self, views: "Iterator[View]", choice: "ViewChoice") -> None:
        from vitconvert.conversion.output import atomic_output
        from vitconvert.pictures.files import is_picture, write_page, write_pictures, write_sheet

        if self.output is None:
            for _ in views:  # each is printed as it comes
                pass
        elif self.in_page:
            write_page(
                self.output,
                views,
                choice.heads if self.heads else None,
                query=choice.query,
                title=f"Attention of {self._name}",
                overwrite=self.force,
            )
        elif is_picture(self.output):
            write_sheet(self.output, views, choice, overwrite=self.force)
        else:
            with atomic_output(self.output, overwrite=self.force) as directory:
                write_pictures(directory, views, choice)
