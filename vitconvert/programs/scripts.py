"""Projects that are repositories of scripts: nothing in them is installed or configured."""

from vitconvert.programs.program import Program

PROGRAM = Program()
