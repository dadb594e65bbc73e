"""The only place with sockets, clocks, threads and processes."""
