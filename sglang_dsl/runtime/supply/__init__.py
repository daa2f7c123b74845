"""Model names, downloads, checksums, the cache folder. No torch."""

from .catalogue import CATALOGUE, CatalogueEntry
from .download import pull
from .folder import cache_folder
from .models import ModelFiles, ModelListing, gguf_parts, list_models, locate
from .progress import Progress, loading, progress_bars

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
