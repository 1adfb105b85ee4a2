"""A language model as expert: asking, reading, paying for and remembering its answers."""
