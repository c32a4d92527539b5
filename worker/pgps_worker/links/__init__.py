"""Links to other brokers: what one has for the other is carried both ways, by one worker, over its connections."""
