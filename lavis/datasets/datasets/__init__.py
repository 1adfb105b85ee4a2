"""Map-style datasets."""
