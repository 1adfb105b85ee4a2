"""`python -m xrl_alignment.environments.household`: generate games."""

from xrl_alignment.environments.household.generator import main

if __name__ == "__main__":
    main()
