"""The shapes of tables, how they change, and when they did. Knows neither source nor sink."""
