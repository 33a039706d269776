"""Base paths in object stores: listing what is there, and copying versions into a bounded cache on this machine."""
