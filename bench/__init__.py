"""Every published figure of speed and memory, reproducible with `make bench`.

One module measures one line of the table. Comparisons are paired: pgps and what it is compared with
alternate within each run, each pair gives a ratio, and the median of the ratios counts.
"""
