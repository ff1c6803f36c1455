"""`python -m vitconvert`."""

from vitconvert.cli import main

main()
