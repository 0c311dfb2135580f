//! Reads the rows of a database file from its pages into an index.
//!
//! `kvorum.storage.backend.native` documents the class. It walks the leaves of bucket `key` in LMDB's data
//! format 1, for one commit that a read transaction keeps in place. It checks every row as
//! `note_rows` does, and that rows ascend. It stops at anything unusual and leaves the rest to
//! LMDB's own cursor.

use crate::encoding::number_at;
use crate::lmdb::{
    BIG_DATA, BRANCH, DATABASE_BYTES, DEPTH_MAX, HEADER_BYTES, LEAF, MappedFile, NO_PAGE,
    NODE_BYTES, OVERFLOW, ROOT, SUB_DATABASE,
};
use crate::rows::{KeyValue, integer, key_value, note, opened, revision_of};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const FLAGS: usize = 10;
const LOWER: usize = 12;

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
const PAGE_BYTES: usize = 4096;
/// Offsets of the fields that are needed in the two meta pages.
const META_MAGIC: usize = HEADER_BYTES;
const META_VERSION: usize = META_MAGIC + 4;
const META_PAGE_BYTES: usize = META_VERSION + 4 + 16;
const META_MAIN: usize = META_PAGE_BYTES + DATABASE_BYTES;
const META_COMMIT: usize = META_MAIN + DATABASE_BYTES + 8;

/// A database file whose pages nothing has checked.
struct Map(MappedFile);

impl Map {
    fn of(path: &Path) -> Option<Map> {
        let file = File::open(path).ok()?;
        MappedFile::new(file.as_raw_fd(), false).ok().map(Map)
    }

    /// The first `length` bytes from the start of a page on.
    fn at(&self, page: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(page).ok()?.checked_mul(PAGE_BYTES)?;
        self.0.bytes().get(start..start.checked_add(length)?)
    }

    /// A page of a tree, its flags, and how many entries it has.
    fn page(&self, number: u64) -> Option<(&[u8], u16, usize)> {
        let page = self.at(number, PAGE_BYTES)?;
        let lower = usize::from(short(page, LOWER)?);
        if u64::from_le_bytes(number_at(page, 0)?) != number || lower < HEADER_BYTES {
            return None;
        }
        Some((page, short(page, FLAGS)?, (lower - HEADER_BYTES) / 2))
    }

    /// The key, value and flags of an entry of a leaf.
    fn entry<'a>(&'a self, leaf: &'a [u8], place: usize) -> Option<(&'a [u8], &'a [u8], u16)> {
        let (node, flags, key) = node(leaf, place)?;
        let length = u32::from_le_bytes(number_at(node, 0)?) as usize;
        let value = NODE_BYTES + key.len();
        if flags & BIG_DATA == 0 {
            return Some((key, node.get(value..value + length)?, flags));
        }
        let number = u64::from_le_bytes(number_at(node, value)?);
        let pages = self.at(number, HEADER_BYTES + length)?;
        if u64::from_le_bytes(number_at(pages, 0)?) != number || short(pages, FLAGS)? != OVERFLOW {
            return None;
        }
        Some((key, &pages[HEADER_BYTES..], flags))
    }

    /// The root of bucket `key` as of a commit.
    fn root(&self, commit: u64) -> Option<u64> {
        let meta = self.at(commit & 1, PAGE_BYTES)?;
        if u32::from_le_bytes(number_at(meta, META_MAGIC)?) != MAGIC
            || u32::from_le_bytes(number_at(meta, META_VERSION)?) != VERSION
            || u32::from_le_bytes(number_at(meta, META_PAGE_BYTES)?) as usize != PAGE_BYTES
            || u64::from_le_bytes(number_at(meta, META_COMMIT)?) != commit
        {
            return None;
        }
        let (buckets, flags, count) =
            self.page(u64::from_le_bytes(number_at(meta, META_MAIN + ROOT)?))?;
        if flags != LEAF {
            return None;
        }
        for place in 0..count {
            let (name, database, flags) = self.entry(buckets, place)?;
            if name == b"key" && flags == SUB_DATABASE && database.len() == DATABASE_BYTES {
                return Some(u64::from_le_bytes(number_at(database, ROOT)?));
            }
        }
        None
    }
}

fn short(data: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(number_at(data, offset)?))
}

/// An entry of a page from its header on, its flags and its key.
fn node(page: &[u8], place: usize) -> Option<(&[u8], u16, &[u8])> {
    let node = page.get(usize::from(short(page, HEADER_BYTES + 2 * place)?)..)?;
    let key = node.get(NODE_BYTES..NODE_BYTES + usize::from(short(node, 6)?))?;
    Some((node, short(node, 4)?, key))
}

#[pyclass(module = "kvorum.network.edge._native")]
pub struct RowPages {
    map: Option<Map>,
    /// The pages from the root down to the next leaf, each with the place of the next entry.
    path: Vec<(u64, usize)>,
    newest: Option<u128>,
}

impl RowPages {
    /// Go to the next leaf; None at the end, and at anything unusual.
    fn next_leaf(&mut self) -> Option<u64> {
        let map = self.map.as_ref()?;
        while let Some((number, place)) = self.path.pop() {
            let (page, flags, count) = map.page(number)?;
            if flags == LEAF {
                return Some(number);
            }
            if flags != BRANCH || self.path.len() == DEPTH_MAX {
                return None;
            }
            if place < count {
                let (node, flags, _) = node(page, place)?;
                let low = u64::from(u32::from_le_bytes(number_at(node, 0)?));
                self.path.push((number, place + 1));
                self.path.push((low | u64::from(flags) << 32, 0));
            }
        }
        None
    }
}

/// The rows of a leaf; None unless all are sound, ascend and come after `newest`.
fn rows_of(
    map: &Map,
    number: u64,
    newest: Option<u128>,
) -> Option<Vec<(u128, Option<KeyValue<'_>>)>> {
    let (leaf, _, count) = map.page(number)?;
    let mut rows = Vec::with_capacity(count);
    let mut newest = newest;
    for place in 0..count {
        let (key, sealed, flags) = map.entry(leaf, place)?;
        let revision = revision_of(key)?;
        let value = opened(key, sealed)?;
        if flags & !BIG_DATA != 0 || newest.is_some_and(|newest| revision <= newest) {
            return None;
        }
        newest = Some(revision);
        // A row without a value marks the revision to which a restored snapshot was raised.
        let kv = if value.is_empty() { None } else { Some(key_value(value)?) };
        rows.push((revision, kv));
    }
    Some(rows)
}

#[pymethods]
impl RowPages {
    #[new]
    fn new(path: PathBuf, commit: u64) -> Self {
        let map = Map::of(&path);
        let root = map.as_ref().and_then(|map| map.root(commit)).unwrap_or(NO_PAGE);
        RowPages { map, path: vec![(root, 0)], newest: None }
    }

    fn note<'py>(
        &mut self,
        py: Python<'py>,
        entries: &Bound<'py, PyDict>,
        leases: &Bound<'py, PyDict>,
        limit: usize,
    ) -> PyResult<(usize, Bound<'py, PyInt>)> {
        let mut count = 0;
        let mut are_leases = !leases.is_empty();
        while count < limit {
            let leaf = self.next_leaf();
            let map = self.map.as_ref();
            let rows = map.zip(leaf).and_then(|(map, leaf)| rows_of(map, leaf, self.newest));
            let Some(rows) = rows else {
                // Rows behind an unusual leaf must not be noted, not by a later call either.
                self.path.clear();
                break;
            };
            count += rows.len();
            for (revision, kv) in rows {
                self.newest = Some(revision);
                if let Some(kv) = kv {
                    note(entries, leases, &mut are_leases, revision, &kv)?;
                }
            }
        }
        Ok((count, integer(py, self.newest.unwrap_or_default())?))
    }
}
