"""Start the process: settings, logs, leader election, HTTP server."""
