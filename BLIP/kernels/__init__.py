"""Provides faster kernels: attention, matmul, linear layers, int8, unpadding, static steps."""
