"""ALFWorld's sentences and commands, and the texts that models are shown."""
