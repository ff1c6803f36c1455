"""The interface of outside programs; its defaults are those of a project of scripts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable, TableError, VitConvertError
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.example import Example, reading_example
from vitconvert.programs.reference import ConfigNotTaken, Reference
from vitconvert.programs.target import DescribedText, Target, fit_target
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Foreign = Any  # an object of a package that states no types

Tokenizer = Mapping[str, Path | JsonObject]
"""Names in an output -> what is copied there, or JSON."""
TOKENIZER_CONFIG = "tokenizer_config.json"
OF_YOUR_OWN = "a table of your own"  # why no class of its dialect can be run
UNKNOWN = (
    "no file states the preprocessing, so the output has none: --preprocessor FILE, or --mean and "
    "--std, state it"
)

# From an output directory to something that computes.
Opener = Callable[[Path], "Callable[[Tensor], Tensor]"]


@dataclass(frozen=True, kw_only=True)
class DescribedModel:
    """A model as configuration files describe it: its weights play no part.

    Attributes:
        config: Architecture and numerics.
        preprocessing: How its images are made.
        labels: Names of its classes.
        dialect: The dialect that it was read from.
        name: The name of an architecture that the reference to it states.
        their_config: The configuration file that it came with.
        text: The text encoder beside it.
        called: Names that show its family, the surest first.
        head_patterns: What matches the tensors of its head, and of the layer before that, among
            the names of the file that it was read from.
    """

    config: ViTConfig
    preprocessing: Preprocessing | None = None
    labels: Labels | None = None
    dialect: str | None = None
    name: str | None = None
    their_config: JsonObject = field(default_factory=dict)
    text: DescribedText | None = None
    called: tuple[str, ...] = ()
    head_patterns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompanionFiles:
    """Files about the weights, beside them or within.

    Attributes:
        files: Name -> content of each file.
        within: Metadata of the file of weights itself, where its format has a place for them.
        departures: How programs that read them treat images differently from the
            checkpoint's own project, one sentence each.
    """

    files: Mapping[str, JsonObject]
    departures: tuple[str, ...] = ()
    within: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BothTowers:
    """A program's model of both encoders.

    Attributes:
        name: The program, its version and its class.
        images: From (B, C, H, W) to (B, F), before they are normed.
        texts: From ids (B, L) to (B, F), before they are normed.
    """

    name: str
    images: "Callable[[Tensor], Tensor]"
    texts: "Callable[[Tensor], Tensor]"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Code of a program, or of vitconvert, that prepares images.

    Attributes:
        name: Whose it is, as reports call it.
        prepare: A file, or an image that somebody opened, in the hands of the program's users ->
            (C, H, W).
        steps: Its steps, where they are known.
    """

    name: str
    prepare: "Callable[[Path | Image.Image], Tensor]"
    steps: Preprocessing | None = None


@contextmanager
def opened(image: "Path | Image.Image") -> "Iterator[Image.Image]":
    """An image file as Pillow opens it; an open image as it is."""
    from PIL import Image

    if isinstance(image, Path):
        with Image.open(image) as found:
            yield found
    else:
        yield image


class Program:
    """An outside program: how it holds a model, opens an output and computes.

    The defaults are those of a project of scripts: it has no configuration file, it cannot be
    installed, and its own code loads the state dict.
    """

    # Whether it reads weights from a single file only.
    one_file: ClassVar[bool] = False
    # Whose tensors its safetensors say they are: transformers refuses those that do not say.
    framework: ClassVar[str] = "pt"
    # Packages that open weights with the names of its dialects; none: the project's own code.
    packages: ClassVar[tuple[str, ...]] = ()
    # Dialects of classes that are changed to open them -> what `--allow` calls such a class.
    adapted: ClassVar[Mapping[str, str]] = {}
    # What scripts look for beside the tensors of a file, by the dialect: linear_eval.py of
    # facebookresearch/msn 4388dc1 reports the epoch.
    beside: ClassVar[Mapping[str, Mapping[str, int]]] = {"msn_encoder": {"epoch": 0}}

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """Plans writing a model in a dialect of the program, with its configuration file.

        Raises:
            NotRepresentable: It cannot hold it.
        """
        return fit_target(table, model.config, text=model.text)

    def other_sizes(self, table: Table) -> str:
        """Who fits a model's positions to images of another size: "program", as it loads or
        computes; "user", by a function of the program; "none", as it takes one size alone.
        """
        return "program"

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """The files beside the weights.

        Args:
            target: What is written.
            preprocessing: How the source's project makes images, or None if nothing says.
            dtypes: Those of the written tensors.
        """
        if not target.their_config or not target.table.config_file:
            return CompanionFiles(files={})
        name, config = target.table.config_file.file, dict(target.their_config)
        if preprocessing is None:
            return CompanionFiles(files={name: config}, departures=(UNKNOWN,))
        return self.with_preprocessing(name, config, preprocessing)

    def tokenizer(self, files: Mapping[str, Path], target: Target) -> Tokenizer:
        """The files of a tokenizer in an output, of those beside the source; {}: it reads others.

        All of them; for a preset of KerasHub, with what its class is called in transformers. What
        CLIP reads after the end of a text plays no part. It is the end again, also where KerasHub
        fills up with the first word, "!", which transformers would then read in other texts, too.

        Args:
            files: By transformers' names for them.
            target: What is written, with a text encoder.
        """
        stated = files.get(TOKENIZER_CONFIG)
        if stated is None or stated.name == TOKENIZER_CONFIG or target.text is None:
            return files
        name = "CLIPTokenizer" if "merges.txt" in files else "SiglipTokenizer"
        length = target.text.plan.sizes["position"]
        stated_there = {"tokenizer_class": name, "model_max_length": length}
        return {**files, TOKENIZER_CONFIG: stated_there}

    def with_preprocessing(
        self, name: str, config: JsonDict, preprocessing: Preprocessing
    ) -> CompanionFiles:
        """The configuration file, and what it or another file says of images."""
        return CompanionFiles(files={name: config})

    def readers(self, table: Table, config: ViTConfig) -> tuple[str, ...]:
        """Packages that have a model for such tensors, the program's own first."""
        return self.packages

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """Packages that open an output directory by themselves, the program's own first."""
        return {}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The program's own model with the tensors of a checkpoint, in float32.

        Raises:
            MissingPackage: The program is not installed.
            NotRepresentable: It cannot be installed, or cannot compute this checkpoint.
            TensorsNotTaken: Its class does not take these tensors.
        """
        table = checkpoint.table
        why = "a repository of scripts, not a package to install"
        if not table.builtin:
            why = f"{OF_YOUR_OWN}; `verify --module CODE:build` compares with the code"
        raise NotRepresentable(f"{table.title}: {why}.")

    def open_both(self, directory: Path) -> "BothTowers":
        """An output of two encoders, as the program loads it.

        Raises:
            MissingPackage: The program is not installed.
            NotRepresentable: It opens no such outputs by itself.
        """
        raise NotRepresentable("No library opens both encoders.")

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """The program's own text encoder with the tensors of a checkpoint: ids to features.

        Raises:
            MissingPackage: The program is not installed.
            NotRepresentable: It cannot be built of this checkpoint's files.
        """
        raise NotRepresentable("No program can be installed that computes the source's texts.")

    def preparation(self, checkpoint: Checkpoint) -> "Preparation | None":
        """The program's own code that prepares images; None if it has none for this one.

        It may raise whatever the program raises for what the checkpoint's files say.
        """
        return None

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """Code that loads an output with the program, to be run in the output's directory.

        Args:
            target, source: What was written, and what it was made of.
            has_processor: Whether there is a `preprocessor_config.json`.
        """
        usage = target.table.usage
        if usage is None:
            return [reading_example(target)]
        return [Example(title=usage.title, code=usage.code_for(source.config))]


def program_of(table: Table) -> Program:
    """The program of a dialect: `PROGRAM` of the module of `vitconvert.programs` that it names.

    Raises:
        TableError: There is no such module.
    """
    name = f"vitconvert.programs.{table.program}"
    try:
        program = getattr(import_module(name), "PROGRAM", None)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise  # the module is there, and something that it imports is not
        program = None
    if not isinstance(program, Program):
        raise TableError(
            f"The table names the program {table.program!r}, which vitconvert does not know.",
            evidence={"file": table.file, "place": "dialect.program"},
            hint=f"a program is a module {name} with a PROGRAM.",
        )
    return program


def build_reference(checkpoint: Checkpoint) -> Reference:
    """The model of a checkpoint's own program, with its weights, in float32.

    Raises:
        MissingPackage: The program is not installed.
        NotRepresentable: No program can be installed that computes this checkpoint.
        ConfigNotTaken: The program does not take what the checkpoint's config.json says.
        TensorsNotTaken: It does not take its tensors.
    """
    with explained_refusal(checkpoint):
        return program_of(checkpoint.table).reference(checkpoint)


@contextmanager
def explained_refusal(checkpoint: Checkpoint) -> Iterator[None]:
    """Within the block a program works with what somebody's config.json says.

    Raises:
        ConfigNotTaken: It does not take that. Where a config.json contradicts the tensors,
            vitconvert believes the tensors.
    """
    try:
        yield
    except VitConvertError:
        raise
    except Exception as error:  # a class may raise anything for arguments that make no sense
        if not checkpoint.their_config:
            raise
        said = str(error).strip().partition("\n")[0]
        raise ConfigNotTaken(
            f"{checkpoint.table.title}: its own class does not take what config.json says: {said}"
        ) from error
