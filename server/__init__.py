"""The doors: command line now, HTTP and framework plugins later."""
