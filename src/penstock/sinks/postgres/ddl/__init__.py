"""Statements that make and alter the target's tables, types and sequences like the source's. They run on the caller's
cursor; which transaction of the source they belong to is decided in `evolve`.
"""
