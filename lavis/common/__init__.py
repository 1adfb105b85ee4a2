"""Registry, configuration and learning-rate schedules."""
