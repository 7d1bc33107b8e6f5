"""What others see of a training: heartbeat, metrics, stacks."""
