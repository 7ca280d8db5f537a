"""Staged rows into the target's tables, as sets: the stages, the statements, and the ways from quick to careful.
What differs from what the source's changes say is a conflict, counted and made right here.
"""
