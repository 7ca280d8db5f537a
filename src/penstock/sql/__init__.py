"""SQL over the columns of one row, by DuckDB: rules of `modifiers:`, and filters of subscriptions."""
