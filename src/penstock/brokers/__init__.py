"""Clients of message brokers, shared by sinks and logs. Extras: nothing here is imported before it is needed."""
