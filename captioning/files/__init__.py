"""Reads and writes files on disk and in object stores: atomically, and with one-line errors."""
