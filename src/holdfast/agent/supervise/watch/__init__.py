"""What is watched while a job runs: output, cards, disks, memory, limits, stalls."""
