"""A small world in which SMILE shows what it does, in minutes."""
