"""Base paths in object stores: listing versions, and copying them into a bounded local cache."""
