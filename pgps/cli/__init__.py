"""The command line `pgps`: one file per noun, SQL in `_statements` and `pgps._catalogue` and `pgps._diagnosis` only."""
