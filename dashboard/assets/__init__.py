"""Static files that are made when they are collected."""
