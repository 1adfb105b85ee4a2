"""The DAgger server's loop: collect, store, update, end of round."""
