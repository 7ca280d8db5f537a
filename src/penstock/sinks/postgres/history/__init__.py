"""Tables that keep every version of a row (slowly changing dimension, type 2): the SQL that ends and adds versions.
The word history means this alone in this sink; how tables looked in the past is kept by `penstock.schema`.
"""
