"""A process group that recovers: three members keep a replicated directory, and another network follows."""
