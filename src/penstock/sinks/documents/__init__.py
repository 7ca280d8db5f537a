"""What penstock supplies to sinks of documents: workers, order, the life of tables, copied rows, positions,
parking. A sink itself is a `penstock.sink.DocumentSink`, and sees none of this.
"""
