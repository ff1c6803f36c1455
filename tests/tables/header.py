"""The section with which every table begins."""

HEADER = """\
[dialect]
title  = "Mine"
source = "https://example.org/mine.py"
"""
