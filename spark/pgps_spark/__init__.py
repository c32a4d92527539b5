"""Publishing to pgps from Spark, and reading from it."""
