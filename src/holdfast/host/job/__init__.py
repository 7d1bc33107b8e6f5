"""Starting a job: spawn, keeper, output."""
