"""Brokers that are linked: the healthcare network and the six databases of the paper (figures 2 and 5)."""
