"""Jobs: from the submit to the end."""
