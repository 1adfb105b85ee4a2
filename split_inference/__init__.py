"""Split inference: ALFWorld in one Python interpreter, a vision-language model in another (docs/split_inference.md)."""
