"""Tables that keep every version of a row (slowly changing dimension, type 2): the SQL that ends and adds versions.
The word history means this alone in this sink; past shapes of tables are kept by `penstock.schema`.
"""
