"""The benchmark: Postgres's own logical replication and penstock, side by side. `make bench`.

servers    two embedded servers, and a fresh pair of databases for every measurement
native     CREATE SUBSCRIPTION between the pair
ours       `penstock run` between the pair, as a child process
workload   what a workload is, and what all have in common
backlogs   inserts and mixed: how fast is a backlog worked off
live       latency, steady, idle: how far behind, at which cost
big        one very large transaction
copies     copy and tables: rows that are there before anything is followed
processes  CPU and memory of every process that takes part
probe      when changes become visible at the target
report     lines on the terminal, and docs/benchmarks.md
"""
