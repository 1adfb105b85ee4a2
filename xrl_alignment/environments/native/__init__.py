"""The native engine: reads ALFWorld's game files and plays them, word for word as TextWorld does."""
