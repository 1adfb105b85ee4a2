"""The native engine: reads ALFWorld's game files and plays them, word for word as TextWorld does.

In order of reading: `gamefile` and `pddl` (what a game file says), `world` (a game made ready to play), `state`,
`actions`, `texts`, `game` (the engine), `environment` (the engine as an `Environment`).
"""
