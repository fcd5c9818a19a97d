"""What this machine and this job offer, by trying it: ``freescale info``, ``doctor``."""
