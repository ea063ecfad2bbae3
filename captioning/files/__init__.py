"""Files on disk and in stores: atomic writes, hashes, and readers with one-line errors."""
