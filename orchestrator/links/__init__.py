"""Links: the processes here that start and follow attempts on other servers."""
