"""Household games in verifiers (extra `verifiers`), 20 of the generator's, with any OpenAI-compatible endpoint:

    python examples/verifiers_household.py --model gpt-4o-mini -n 20 --no-push \
        --client.base-url https://api.openai.com/v1 --client.api-key-var OPENAI_API_KEY

Other options of vf-eval: -r 5 for five trials of each game, --env.taskset.admissible, --env.taskset.split valid_unseen,
--env.taskset.seed 1. Without --no-push, verifiers uploads the results to its maker's platform.
"""

import sys

from lavis.common.errors import missing_extra

try:
    from verifiers.v1.cli.eval.main import main

    from xrl_alignment.adapters.verifiers import HouseholdEnv, HouseholdHarness, HouseholdTaskset
except ModuleNotFoundError as error:
    sys.exit(f"error: {missing_extra('verifiers', error)}")

__all__ = ["HouseholdEnv", "HouseholdHarness", "HouseholdTaskset"]  # here verifiers finds them

if __name__ == "__main__":
    main(["verifiers_household", *sys.argv[1:]])
