"""A policy server: one vision-language model, many games (docs/policy_server.md)."""
