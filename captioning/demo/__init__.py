"""A demo that shows the effect of SMILE on a small generated world, in minutes."""
