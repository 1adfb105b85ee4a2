"""EMAC+'s loop: a language model plans, the agent acts and reports, both learn from each other (docs/emac_plus.md)."""
