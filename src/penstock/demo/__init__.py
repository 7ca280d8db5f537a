"""`penstock demo`: the whole product on embedded parts, with a proof at the end."""
