"""Model names, downloads, checksums, the cache folder. No torch."""
