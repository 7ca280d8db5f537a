"""Lists of names, from Faker (MIT, see LICENSE beside this file)."""
