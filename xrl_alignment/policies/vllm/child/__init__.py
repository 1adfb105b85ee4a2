"""A program for the interpreter that has vLLM; in a folder of its own, which is the first that it imports from."""
