"""Everything online: environments, experts, policies, the DAgger loop; its commands are `python -m xrl_alignment.…`."""

import lavis  # noqa: F401  (before all else: it says in one line what this interpreter lacks)
