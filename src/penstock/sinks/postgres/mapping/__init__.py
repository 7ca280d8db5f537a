"""Where a source table goes in the target, and how: what the options say, what the target's catalog has,
and the plan that follows from both. Driver and executors share the plan; nothing here writes a row.
"""
