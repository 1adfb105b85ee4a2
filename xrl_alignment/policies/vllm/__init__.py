"""The policy's language model on vLLM: servers, or an engine in a child process."""
