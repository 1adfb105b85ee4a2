"""What a training run leaves on disk: its directory, checkpoints, stored transitions, and memories written anew."""
