"""Training anything: optimizers, checkpoints, logs, one loop; it knows neither biLMs nor tasks."""
