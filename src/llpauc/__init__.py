"""Train recommenders towards their top-K lists."""
