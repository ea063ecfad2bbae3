"""What lies on disk: written whole or not at all, hashed, read or refused in one line."""
