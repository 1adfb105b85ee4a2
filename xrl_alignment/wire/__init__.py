"""The wire between client and server: the messages, their two formats, and the server's HTTP side."""
