"""What every other room stands on: errors, names, network, programs. Knows no other room."""
