"""What a written version must pass before it is published, and what it is asked."""
