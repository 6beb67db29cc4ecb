"""What the demo and the end-to-end tests share: the product installed on a cluster, and ways to look at it."""
