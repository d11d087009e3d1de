"""One module a command of the CLI, loaded when that command runs. No import here."""
