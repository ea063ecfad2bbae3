"""What a sampled caption is worth: one reward a file, and the processes that compute them."""
