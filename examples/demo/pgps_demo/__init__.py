"""`pgps demo`: real data through a broker and worker of its own, and a proof that all arrived, once and in order."""
