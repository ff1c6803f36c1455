"""Every error that vitconvert raises on purpose.

    VitConvertError             1  the root; catch this one
      SourceError               1  a file or directory was not found
        OfflineError            1  a file must be downloaded, and the network does not answer
        IntegrityError          1  a file is not the published one, or changed while it was read
      CorruptFile               1  a file is truncated, damaged or not of its format
      UnsafeFile                4  reading a file would run code or use too much memory
      TableError                1  a table of weights_map/ (or --table) does not parse
      UnknownDialect            1  no table has all tensor names of a file
      AmbiguousDialect          1  several tables have all tensor names of a file
      TensorMismatch            1  tensors are missing, left over, doubled or of a wrong shape
        Quantised               1  the weights are quantised, and --dtype was not given
        ShapeMismatch           1  the shape of a tensor contradicts its row of the table
      MissingFact               1  a value is in no tensor and in no file
      ConflictingFact           1  a stated value contradicts the tensors
      InputMismatch             1  images have a wrong size, type or number of channels
      NotRepresentable          5  the target cannot compute the same function
        OtherFunction           5  the target takes the tensors and computes other outputs
        OtherKind               5  the target has no model with such a part
      ParityFailed              3  outputs differ
      UploadError               1  an output cannot be published on the Hub
      OutputExists              1  the output exists, and `--force` was not given
      MissingPackage            1  a package that the command needs is not installed
      UsageError                2  a command or an argument is wrong

The number is the exit code of the command line. A message has a code, one sentence that says what
is wrong, aligned evidence, its meaning if that is known, and one hint, which begins in lower case.
Python callers get the same parts as attributes.

Names of files and tensors may contain control characters, which change a terminal. Messages escape
them (`printable`); attributes keep the original text.
"""

import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

# Control characters, what turns the direction of writing, what ends a line for some programs, and
# halves of characters, which no encoding can write (Unicode 16, chapter 23; UAX 9 and UAX 14).
UNPRINTABLE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_COMMAND = re.compile(r"\S.*?  +vitconvert ")  # a line of evidence that is typed
_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}]")
_LONGEST_MESSAGE = 300  # of an exception of somebody else's
_LONGEST_LINE = 4000
_BRIEF = 5  # lines of a brief message after its code
_QUOTED = re.compile(r"`[^`]*`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
_IN_PYTHON = re.compile(r" \(in Python, (?:[^()]|\([^()]*\))*\)")
# Flags of which Python has the same as an argument, by that name or another one.
_SAME = "adapter allow architecture classes crop device dialect ignore image-column image-size "
_SAME += "interpolation labels lora-scale max-errors mean num-classes prefer preprocessor rescue "
_SAME += "std table tower"
ARGUMENTS = {f"--{name}": name.replace("-", "_") for name in _SAME.split()}
ARGUMENTS |= {"--set": "overrides", "--force": "overwrite"}


class VitConvertWarning(UserWarning):
    """Something was assumed or ignored, and the result does not show it."""


def warn(fact: str) -> None:
    """Report an assumption: a warning in Python, a note on the command line.

    Python shows the same text once, unless the user's filters say otherwise.
    """
    warnings.warn(printable(fact), VitConvertWarning, stacklevel=3)


def printable(text: str) -> str:
    """One line that any terminal, log or page can show: what steers them is escaped."""
    shown = _UNPRINTABLE.sub(
        lambda match: match[0].encode("unicode_escape").decode("ascii"), text[:_LONGEST_LINE]
    )
    return shown + "..." if len(text) > _LONGEST_LINE else shown


# A password may hold a slash that should have been written as %2F; a port is none.
_LOGIN = re.compile(
    r"""(?P<scheme>[A-Za-z][\w+.-]+:/{1,2})"""
    r"""(?P<user>[^\s/?#@:'"]*)(?P<password>:(?!\d+/)[^\s@'"]*)?@"""
)
_QUERY = re.compile(r"""(\w[\w+.-]+:/[^\s?#'"]*)(\?[^\s#'"]*)?(#[^\s=?'"]*=[^\s'"]*)?""")
# Path() makes one slash of two, and on Windows a backslash. A drive has one letter.
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:[/\\]")


def without_secrets(text: str) -> str:
    """A text, of whose addresses those parts are left out that may be secrets.

    These are passwords, users' names with them, and whatever follows a question mark: tokens and
    signatures stand there. A user alone is a secret of https, and the container of abfs.
    """
    if not _ADDRESS.search(text):
        return text
    return _QUERY.sub(lambda match: match[1], _LOGIN.sub(_without_login, text))


def _without_login(match: re.Match[str]) -> str:
    kept = match["password"] is None and not match["scheme"].startswith("http")
    kept |= match["scheme"].startswith("abfs")
    return f"{match['scheme']}{match['user']}@" if kept and match["user"] else match["scheme"]


def as_typed(*words: str) -> str:
    """Words of a command, quoted for the shells of this system."""
    if sys.platform == "win32":
        from subprocess import list2cmdline  # late: only for Windows

        return list2cmdline(words)
    return shlex.join(words)


def is_address(place: str) -> bool:
    """Whether a text is an address (s3://..., https://...), also once it became a path."""
    return _ADDRESS.match(place) is not None


def what_was_raised(error: BaseException) -> str:
    """The kind of somebody else's exception, and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).strip()[:_LONGEST_MESSAGE]}"


class VitConvertError(Exception):
    """An error with a code, a fact, evidence, an explanation and a hint."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    # Whether messages leave out the details, of which the evidence has the one that matters.
    folded = False
    # What is wrong in words of the command line, where Python's differ.
    typed = ""

    def __init__(
        self,
        fact: str,
        *,
        evidence: Mapping[str, object] | None = None,
        details: Sequence[str] = (),
        meaning: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.fact = without_secrets(fact)
        self.evidence = {k: without_secrets(str(value)) for k, value in (evidence or {}).items()}
        self.details = tuple(map(without_secrets, details))
        self.meaning = meaning
        self.hint = hint and without_secrets(hint)
        super().__init__(self.fact)
        if arguments := _arguments_of(self.hint or ""):
            self.add_note(f"  in Python: {', '.join(arguments)}")

    def __str__(self) -> str:
        """The message in all its lines."""
        return self.text()

    def text(self, *, verbose: bool = False, brief: bool = False) -> str:
        """The message.

        Args:
            verbose: With all details.
            brief: As the command line prints it: without -v in few lines, and without the
                arguments of Python.
        """
        width = max((len(key) for key in self.evidence), default=0) + 2
        facts: list[list[str]] = []  # each in one line or more
        for key, value in self.evidence.items():
            first, *rest = value.split("\n")
            # A line in somebody else's text stays indented, so that it does not look like ours.
            facts += [[f"{printable(key):<{width}}{printable(first)}"]]
            facts[-1] += [f"  {printable(line.removeprefix('    '))}" for line in rest]
        details = [*map(printable, self.details if verbose or not self.folded else ())]
        meaning = [printable(self.meaning)] if self.meaning else []
        last = [f"hint: {printable(self.hint)}"] if self.hint else []
        lines = [*(line for fact in facts for line in fact), *details]
        room = _BRIEF - 1 - len(meaning) - len(last)
        if brief and not verbose and len(lines) > room:
            lines = _shortened([fact[0] for fact in facts], details, len(lines), room)
        fact = self.typed if brief and self.typed else self.fact
        lines = [printable(fact), *lines, *meaning, *last]
        text = "\n".join([f"error: {self.code}", *(f"  {line}" for line in lines)])
        return as_flags(text) if brief else text

    def to_dict(self) -> dict[str, object]:
        """The same facts for `--json`."""
        return {
            "code": self.code,
            "message": self.fact,
            "evidence": self.evidence,
            "details": list(self.details),
            "meaning": self.meaning,
            "hint": self.hint,
        }

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not pickle by themselves, and worker
        # processes must be able to hand ours back.
        return (_rebuild, (type(self), self.fact, self.__dict__))


def as_flags(text: str) -> str:
    """A text for the command line, without what it says of Python."""
    return _IN_PYTHON.sub("", text)


def _arguments_of(hint: str) -> list[str]:
    """The arguments that do in Python what a hint names as flags, unless it says that itself."""
    flags = [] if "in Python" in hint else _FLAG.findall(_QUOTED.sub("", hint))
    return [f"{ARGUMENTS[flag]}=" for flag in dict.fromkeys(flags) if flag in ARGUMENTS]


def _shortened(evidence: list[str], details: list[str], count: int, room: int) -> list[str]:
    """As many of a message's lines as there is room for; the last says how many are left out.

    Commands to type stay as they are, and so does the first of the details.
    """
    command = [line for line in evidence if _COMMAND.match(line)]
    others = [line for line in evidence if line not in command]
    others = others[: max(room - len(command) - len(details[:1]), 0)]
    shown = details[: max(room - len(command) - len(others), 1)]
    kept = [line for line in evidence if line in command or line in others] + shown
    if count > len(kept):
        last = (shown or others or [""])[-1]
        if not last and len(kept) < room:
            kept.append(f"and {count - len(kept)} more (-v)")
        elif last and "-v" not in last:
            kept[kept.index(last)] += f", and {count - len(kept)} more (-v)"
    return kept


def _rebuild(cls: type[VitConvertError], fact: str, state: dict[str, object]) -> VitConvertError:
    error = cls.__new__(cls)
    Exception.__init__(error, fact)
    error.__dict__.update(state)
    return error


class SourceError(VitConvertError):
    """A file or directory was not found."""

    code = "source-not-found"


class OfflineError(SourceError):
    """A file must be downloaded, and the network does not answer."""

    code = "offline"


class IntegrityError(SourceError):
    """A file is not the published one, or it changed after it was opened."""

    code = "hash-mismatch"


class CorruptFile(VitConvertError):
    """A file is truncated, damaged or not of its format."""

    code = "corrupt-file"


class UnsafeFile(VitConvertError):
    """Reading a file would run code or use too much memory.

    Attributes:
        rescuable: Whether `rescue` can read its tensors as data, without running code.
    """

    code = "unsafe-file"
    exit_code = 4
    rescuable: bool = False


class TableError(VitConvertError):
    """A mapping table does not parse."""

    code = "table-error"


class UnknownDialect(VitConvertError):
    """No table has all tensor names of a file.

    Attributes:
        alike: Whether the file is of a known model with a ViT's tensors and others.
    """

    code = "unknown-dialect"
    alike: bool = False


class AmbiguousDialect(VitConvertError):
    """Several tables have all tensor names of a file.

    Attributes:
        dialects: Their names.
    """

    code = "ambiguous-dialect"
    dialects: tuple[str, ...] = ()


class TensorMismatch(VitConvertError):
    """Tensors are missing, left over, doubled or of a wrong shape."""

    code = "tensor-mismatch"


class Quantised(TensorMismatch):
    """The weights are quantised, and `dequantise` (`--dtype`) was not given.

    Attributes:
        computable: Whether vitconvert can dequantise them.
    """

    computable: bool = False


class ShapeMismatch(TensorMismatch):
    """The shape of a tensor contradicts its row of the table."""

    code = "shape-mismatch"


class MissingFact(VitConvertError):
    """A value that decides the outputs is in no tensor and in no file."""

    code = "missing-fact"


class ConflictingFact(VitConvertError):
    """A stated value contradicts the tensors."""

    code = "conflicting-fact"


class InputMismatch(VitConvertError, ValueError):
    """Images do not fit the model."""

    code = "input-mismatch"


class NotRepresentable(VitConvertError):
    """The target cannot compute the same function.

    Attributes:
        steps: Names of the steps that together make it fit; `allow` (`--allow STEP`) takes them.
        without_head: The steps that make it fit without its head, if only the head is in the way.
        without_layer: Options of a conversion that fits, with the patterns of tensors to ignore, if
            only the layer before the head is in the way.
        holders: Libraries that compute the function as it is.
        source: The library that it comes from.
    """

    code = "not-representable"
    exit_code = 5
    steps: tuple[str, ...] = ()
    without_head: Sequence[str] | None = None
    without_layer: Mapping[str, str | Sequence[str]] | None = None
    holders: tuple[str, ...] = ()
    source: str | None = None

    def in_one_line(self) -> str:
        """Why it cannot, for a list of such reasons."""
        evidence = (f"{key} {value}" for key, value in self.evidence.items() if key != "table")
        return "; ".join(self.details) or "; ".join((self.fact.rstrip("."), *evidence))


class OtherFunction(NotRepresentable):
    """The target takes every tensor and computes other outputs with them."""


class OtherKind(NotRepresentable):
    """The target has no model with such a part."""


class ParityFailed(VitConvertError):
    """Outputs of two implementations differ by more than the tolerance."""

    code = "parity-failed"
    exit_code = 3


class UploadError(VitConvertError):
    """An output cannot be published on the Hub."""

    code = "upload-failed"


class OutputExists(VitConvertError):
    """The output exists already."""

    code = "output-exists"


class MissingPackage(VitConvertError):
    """A package that is needed is not installed."""

    code = "missing-package"


class UsageError(VitConvertError):
    """A command or an argument is wrong."""

    code = "usage"
    exit_code = 2


_LONGEST_WORD = 200


def some(names: Iterable[str], most: int = 3) -> str:
    """The first names of a list, and how many follow."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def size_text(size: Iterable[int]) -> str:
    """A size for people: 224x320."""
    return "x".join(map(str, size))


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The names that may have been meant, the likeliest first; for hints.

    Args:
        word: The word as it was written.
        known: The names that exist.
        count: How many at most.
    """
    if len(word) > _LONGEST_WORD:  # each comparison takes as long as both words together
        return []
    from difflib import get_close_matches  # which a run without mistakes need not wait for

    return get_close_matches(word, list(known), n=count)
