"""What runs inside of the job, before it: standard library only, no import of ours."""
