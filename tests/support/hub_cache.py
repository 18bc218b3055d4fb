"""A dataset in the cache of the Hub's client. Needs pyarrow."""

import pyarrow as pa
import pyarrow.parquet as pq
import yaml


def make_hub_cache(folder, name, files, card=None):
    """A snapshot as the Hub's client leaves it: names are links to blobs."""
    repository = folder / f"datasets--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("abc123")
    for number, (file, rows) in enumerate(files.items()):
        blob, link = repository / "blobs" / str(number), repository / "snapshots/abc123" / file
        blob.parent.mkdir(exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), blob)
        link.symlink_to(blob)
    if card:
        (repository / "snapshots/abc123/README.md").write_text(f"---\nlicense: mit\n{yaml.safe_dump(card)}---\n# Rows\n")
