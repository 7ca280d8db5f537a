"""Transactions of the source that change shapes, each as one DDL transaction of the target: rows and schema changes
alternate, and a table that cannot follow stops alone. What a change comes to in SQL is known to `ddl`.
"""
