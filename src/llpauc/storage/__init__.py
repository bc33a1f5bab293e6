"""Files on disk: atomic folders, manifests, run folders."""
