"""The process that moves events: dispatch, internal subscriptions, retries and reclaim."""

__all__: list[str] = []
