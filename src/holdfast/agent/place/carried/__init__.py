"""What a desk sends along with a command line: its files, and the job that it has read from one."""
