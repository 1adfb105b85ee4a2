"""Games: what the model is asked for each game, and how its answer becomes a valid action.

- `prompts.py`: `ModelPrompt` (what the model is asked) and `ParsedAction` (what its text means)
- `minerl.py`: the four MineRL BASALT tasks
- `alfworld.py`: ALFWorld's text commands
- `action_spaces.py`: which of the two modules serves a task

This room imports no other room of the policy server.
"""
