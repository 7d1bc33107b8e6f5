"""Writing checkpoints: snapshot, writer process, mirror, pruning."""
