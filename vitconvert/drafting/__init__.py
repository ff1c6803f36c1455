"""Proposes a table for names that nobody knows, by a ViT that is known.

Tried on 20 spellings that have no table (tests/drafting/spellings.py), fifteen of them real
projects'. Names and shapes alone tell 253 of 273 rows for certain, and all of these are right; so
are 19 of the 20 guesses. Where the reference has the same weights, all 273 rows are certain, and
right.
"""
