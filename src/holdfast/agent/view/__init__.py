"""What can be told of runs by reading alone: records for people, `--json`, dashboards. Nothing here writes."""
