"""Where source and target differ in their tables: found for `check`, and kept as notes of a table while it streams.
Nothing here changes a table of the user's.
"""
