"""The Postgres sink: one transaction per batch merges every table and moves the position.

Begin with `sink.py` (driver half) and `worker.py` (executor half). `mapping` says where a table goes, `merge` and
`history` write rows, `copy` brings whole tables, `ddl` and `evolve` let tables follow the source's, `expressions`
judges foreign text, `compare` finds what differs, `state` is what penstock keeps at the target.
"""
