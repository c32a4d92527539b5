"""Private PostgreSQL clusters, made from the installed server binaries.

They live under a directory of the project's own, listen on a private socket
and on the loopback address only, and run as an unprivileged user even when
started by root. No other cluster on the machine is ever touched.
"""

from pgps.embedded.binaries import Binaries, find_binaries
from pgps.embedded.cluster import ClusterStatus, EmbeddedCluster, list_clusters

__all__ = ["Binaries", "ClusterStatus", "EmbeddedCluster", "find_binaries", "list_clusters"]
