"""HTTP and the command line: routes, validation, error bodies, wire projections, SSE."""
