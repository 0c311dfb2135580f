"""The file format of etcd's database and snapshots, read and written without etcd's code.

`pages` knows the layout, `reading` walks a file that may be damaged, `writing` makes a new one
in one pass, and `amending` changes a little of one. Nothing here knows what the buckets mean.
"""

from kvorum.backend.bbolt.amending import replace_bucket
from kvorum.backend.bbolt.pages import ImageError
from kvorum.backend.bbolt.reading import Image, open_image
from kvorum.backend.bbolt.writing import write_image

__all__ = ["Image", "ImageError", "open_image", "replace_bucket", "write_image"]
