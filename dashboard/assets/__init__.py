"""Static files that are built while they are collected."""
