"""pgps side by side with what a user would pick instead, on one machine in one run: `make field`.

plan.py         the workload of a system: subscribers, filters, publishers
rounds.py       run the contenders in turn, round by round, and check that all events arrived
crew.py         the client processes of a system, and what they report
peers.py        fetch peers by name: Debian packages unpacked into a cache, a venv, npm
systems/        one module a system: server, topology, clients
clients/        the programs that publish and subscribe, each with its system's own library
experiments/    one module an experiment
report.py       tables on the screen, raw results; document.py, plots.py: docs/performance.md from raw results
"""
