"""Reads and writes bbolt, the file format of etcd's database and snapshots, without etcd's code.

`pages` defines the layout, `reading` walks a file that may be damaged, `writing` makes a new file
in one pass, and `amending` replaces one small bucket. Nothing here interprets the buckets.
"""

from kvorum.storage.backend.bbolt.amending import replace_bucket
from kvorum.storage.backend.bbolt.pages import ImageError
from kvorum.storage.backend.bbolt.reading import Image, open_image
from kvorum.storage.backend.bbolt.writing import write_image

__all__ = ["Image", "ImageError", "open_image", "replace_bucket", "write_image"]
