"""The command line `pgps`: one file per noun, SQL in `_statements`, `pgps._catalogue`, `pgps._diagnosis`."""
