"""Outside programs: one module or package for each, with all that Python must know of it.

A table names its program (`[dialect] program`). What it can say itself is said there: names, axes,
numerics, the fields of a configuration file. What it cannot say is here: how the program's
configuration is completed, how the program opens an output, how it computes as a reference, and
which code shows its use.
"""

from vitconvert.programs.program import (
    CompanionFiles,
    DescribedModel,
    Program,
    build_reference,
    explained_refusal,
    program_of,
)

__all__ = [
    "CompanionFiles",
    "DescribedModel",
    "Program",
    "build_reference",
    "explained_refusal",
    "program_of",
]
