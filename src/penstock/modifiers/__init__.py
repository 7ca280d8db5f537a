"""Modifiers: what is done to the changes of a table between the source and a sink.

`modifier` is the contract, `copies` the same for rows that are copied. `rule` reads an entry of `modifiers:`,
`chain` puts the rules of a sink together, `binding` makes them for the shapes that tables have in a batch.
A family of rules is a module or a package: `filter`, `transform`, `inject`, `route`.

They know changes and shapes; neither the source, nor the log, nor any sink.
"""
