"""Outside programs: one module or package for each, with all that Python must know of it.

A table names its program (`[dialect] program`). Names, axes, numerics and the fields of a
configuration file are stated in the table. What it cannot state is here: how the program's
configuration is completed, how the program opens an output, how it computes as a reference, and
which code shows its use.
"""
