"""Rewards of sampled captions, one per file, and the processes that compute them."""
