"""What is in a version directory, and how it becomes something that answers: manifest, loading, warm-up."""
