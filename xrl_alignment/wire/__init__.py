"""The messages between client and server, and the server's HTTP side."""
