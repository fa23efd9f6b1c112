"""Numbers have a point in every language: people copy them into code and compare them with a log."""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
