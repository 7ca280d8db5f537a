"""What penstock keeps at a target for itself, in the schema `penstock`: positions, how every table stands, the shapes that
were last followed, the records of copies. Stored formats live here and nowhere else in this sink.
"""
