"""Jobs: work that outlives the request, the caller's connection and the server's process."""
