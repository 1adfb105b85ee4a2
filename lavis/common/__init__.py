"""What everything else stands on: errors, files, progress, devices, processes, registry, configuration, schedules."""
