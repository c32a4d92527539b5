"""Chess by mail: two programs that are started, make one move, and end."""
