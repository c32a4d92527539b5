"""What a worker does for clients: tries direct events again, confirms, executes requests."""
