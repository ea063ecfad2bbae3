"""Files on disk and in stores: written atomically, hashed, and read with one-line errors."""
