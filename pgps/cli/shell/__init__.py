"""The shell behind `pgps sql`: the statement language and SQL, mixed."""
