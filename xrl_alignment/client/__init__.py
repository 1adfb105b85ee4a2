"""The client: plays environments and asks the server for every action."""
