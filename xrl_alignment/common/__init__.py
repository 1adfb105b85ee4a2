"""What every other room builds on: errors, names, network, programs. It imports no other room."""
