"""What the supervisor and the box give: checked and applied."""
