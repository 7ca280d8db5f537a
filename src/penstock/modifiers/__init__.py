"""Modifiers: what is done to the changes of a table between the source and a sink.

`modifier` is the contract, `copies` the same for rows that are copied. They know changes and shapes;
neither the source, nor the log, nor any sink.

There is none yet, and nothing builds any: `run_task`, `Flow`, `Copier` and `Round` take them as an argument.
Copies give sinks modified shapes. Whoever builds the first one has to see that sinks are also given them
where they ask for a table's shape (`pipeline.Describer`) and where it changes (`run.ddl_transactions`).
"""
