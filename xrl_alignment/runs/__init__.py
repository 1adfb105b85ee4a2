"""What a training run leaves on disk: its directory, checkpoints, stored transitions, and the buffer over them."""
