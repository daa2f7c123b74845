"""Model names, downloads, checksums, the cache folder. No torch."""

from .download import Progress, loading, progress_bars, pull
from .models import CATALOGUE, CatalogueEntry, ModelFiles, ModelListing, cache_folder, gguf_parts, list_models, locate

__all__ = [
    "CATALOGUE",
    "CatalogueEntry",
    "ModelFiles",
    "ModelListing",
    "Progress",
    "cache_folder",
    "gguf_parts",
    "list_models",
    "loading",
    "locate",
    "progress_bars",
    "pull",
]
