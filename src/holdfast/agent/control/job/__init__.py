"""The job of a run after it was created: copies of its code, what somebody changes of it, limits of a live one."""
