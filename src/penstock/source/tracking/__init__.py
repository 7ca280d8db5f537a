"""What penstock puts on a source so that it reports changes of tables: event triggers and their functions.

install      on the server, checked there, taken off
sql          the statements that do it
events       what event triggers call
members      new tables into publications, and out of them
message      one message of what a statement has touched
lines        one table in lines of text
documents    tables, types and sequences described, and signed
"""
