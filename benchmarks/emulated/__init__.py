"""What ``emulated_cluster.py`` trains, on ranks that wait for requests, and where the time went."""
