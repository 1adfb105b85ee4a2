"""What the types of objects look like where they have to be recognised (`looks`): one builder for each type.

Importing this package fills the table `build.BUILDERS`, by the decorator `builds` over each builder.
What tells a type from its neighbours stands behind the name of its builder. Colours tell little: a mug, a book and a
cloth may all have the same red.
"""

from alfworld_native.drawing.kinds import belongings, furnishings, provisions, tableware

__all__ = ["belongings", "furnishings", "provisions", "tableware"]
