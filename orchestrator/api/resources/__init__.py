"""One module for each noun of the REST API, with its routes and the schemas of its answers."""
