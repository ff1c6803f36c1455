"""Deeds: plans, their execution, the accounts and morphs. Opens no file, knows no project."""
