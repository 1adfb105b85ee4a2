"""How the demo's frozen parts, the prompts and the students that ship were made."""
