"""One large job, from publishing to the last settlement, while processes are killed. See `__main__`."""
