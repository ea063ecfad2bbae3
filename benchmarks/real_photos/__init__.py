"""Compares MLE, SMILE and mixtures of both on real photographs, over several seeds."""
