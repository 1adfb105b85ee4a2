"""Who plans: a language model in this process or behind an endpoint, or the explorer; and how the first one learns."""
