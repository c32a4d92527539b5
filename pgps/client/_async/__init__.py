"""The source: `pgps/client/_sync` is made from it by tools/unasync_client.py, except runtime.py."""
