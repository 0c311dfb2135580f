"""The `kvorum` process around the server object: start-up, loop, jobs, directory."""
