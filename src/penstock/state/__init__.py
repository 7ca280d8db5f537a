"""What a pipeline keeps on this machine, and what its halves report to each other."""
