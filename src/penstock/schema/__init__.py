"""What tables look like, how that changes, and when it did. Knows neither source nor sink."""
