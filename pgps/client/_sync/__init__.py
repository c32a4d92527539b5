"""Made from pgps/client/_async by tools/unasync_client.py, except runtime.py."""
