"""What all runs of many fits share: executors, jobs, checkpoints, reporting."""
