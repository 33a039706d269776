"""Configuration files to what the rest of the server works with: text protos, their errors, their pollers."""
