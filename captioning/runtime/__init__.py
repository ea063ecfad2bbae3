"""Being one of several processes, or the only one: start, stop, fail, end, say, show progress."""
