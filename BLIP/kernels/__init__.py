"""Faster ways to compute the same: attention, matmul, int8, unpadding, static steps."""
