"""The command line `pgps`: one file per noun, SQL in `_queries` only."""
