"""The command line: a client like any other. One module for each command group, loaded when its command is used."""
