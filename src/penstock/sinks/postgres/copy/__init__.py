"""Whole tables into the target: room is made, ranges arrive by COPY, directly or in a shadow table, and keys, indexes
and foreign keys are made when the rows are there. Both halves of a copy are here.
"""
