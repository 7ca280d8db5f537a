"""Copy tables: parallel, range by range, under a snapshot whose position in the stream is exact."""
