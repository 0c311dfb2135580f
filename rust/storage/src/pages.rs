//! Checks the pages of a database file from the root of one commit, before LMDB may use them.
//!
//! `kvorum.storage.backend.pages` documents the checks, reads the meta pages, and has the same walk in
//! Python; both report problems with the same texts.

use crate::checksum::crc32c;
use crate::lmdb::{
    BIG_DATA, BRANCH, DATABASE_BYTES, DEPTH_MAX, HEADER_BYTES, LEAF, MappedFile, NO_PAGE,
    NODE_BYTES, OVERFLOW, ROOT, SUB_DATABASE,
};
use pyo3::prelude::*;
use std::fmt::Write;

const NUMBER_BYTES: usize = 8;
const META_PAGES: usize = 2;
const KEY_BYTES_MAX: usize = 511;
/// The CRC-32C of any data followed by its own CRC-32C.
const RESIDUE: u32 = 0x4867_4BC7;

const META: &str = "bucket meta";

/// A result whose error says what is wrong with the file.
type Checked<T> = Result<T, String>;
/// Key and value.
type Entry<'a> = (&'a [u8], &'a [u8]);
/// Entries for Python.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn short(data: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

fn long(data: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

/// The kind of database that a tree belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Lists of free pages, by the commit that freed them.
    Free,
    /// The records of the buckets.
    Main,
    Bucket,
}

/// One node of a page: its first three words, its key, and where its value begins.
struct Node<'a> {
    words: [u16; 3],
    key: &'a [u8],
    value_at: usize,
}

struct Check<'a> {
    data: &'a [u8],
    page_bytes: usize,
    /// Pages that the commit may refer to; the file may lack free ones at its end.
    page_count: usize,
    is_copy: bool,
    /// For each page, whether a tree or the list of free pages has claimed it.
    taken: Vec<bool>,
    nodes: Vec<Node<'a>>,
    spans: Vec<(usize, usize)>,
}

impl<'a> Check<'a> {
    fn take(&mut self, number: u64, count: usize) -> Checked<usize> {
        let end = u128::from(number) + count as u128;
        let of_file = self.data.len() / self.page_bytes;
        if number < META_PAGES as u64 || end > self.page_count.min(of_file) as u128 {
            let length = self.data.len();
            return Err(format!("page {number} is not within the file of {length} bytes"));
        }
        let first = number as usize;
        let marks = &mut self.taken[first..first + count];
        if marks.contains(&true) {
            return Err(format!("page {number} is used twice"));
        }
        marks.fill(true);
        Ok(first * self.page_bytes)
    }

    fn page(&mut self, number: u64) -> Checked<(u16, &'a [u8])> {
        let offset = self.take(number, 1)?;
        let page = &self.data[offset..offset + self.page_bytes];
        let own = long(page, 0);
        if own != number {
            return Err(format!("page {number} says that it is page {own}"));
        }
        Ok((short(page, 10), page))
    }

    /// Read the nodes of a page; they must fill exactly the room that is not free.
    fn read_nodes(&mut self, number: u64, page: &'a [u8], is_leaf: bool) -> Checked<()> {
        let (lower, upper) = (usize::from(short(page, 12)), usize::from(short(page, 14)));
        if lower <= HEADER_BYTES || lower > upper || upper > page.len() || lower % 2 == 1 {
            return Err(format!("page {number} has no room for its entries"));
        }
        let inline_bytes_max = (((page.len() - HEADER_BYTES) / 2) & !1) - 2;
        self.nodes.clear();
        self.spans.clear();
        for place in (HEADER_BYTES..lower).step_by(2) {
            let start = usize::from(short(page, place));
            let begin = start + NODE_BYTES;
            if start < upper || begin > page.len() {
                return Err(outside(number));
            }
            let value_at = begin + usize::from(short(page, start + 6));
            let Some(key) = page.get(begin..value_at) else { return Err(outside(number)) };
            let words = [short(page, start), short(page, start + 2), short(page, start + 4)];
            let value_bytes = match (is_leaf, words[2] & BIG_DATA) {
                (false, _) => 0,
                (true, 0) => usize::from(words[0]) | usize::from(words[1]) << 16,
                (true, _) => NUMBER_BYTES,
            };
            let length = value_at - start + value_bytes;
            if length > inline_bytes_max {
                return Err(format!("an entry of page {number} is too long"));
            }
            self.nodes.push(Node { words, key, value_at });
            self.spans.push((start, length + length % 2));
        }
        if !self.spans.is_sorted_by(|one, next| one.0 > next.0) {
            self.spans.sort_unstable_by(|one, next| next.cmp(one));
        }
        let mut end = page.len();
        for (start, length) in &self.spans {
            if start + length != end {
                return Err(format!("the entries of page {number} do not lie side by side"));
            }
            end = *start;
        }
        if end != upper {
            return Err(format!("the entries of page {number} do not lie side by side"));
        }
        Ok(())
    }

    /// Return a value that is stored on overflow pages, and the number of these pages.
    fn overflow(&mut self, page: &[u8], at: usize, length: usize) -> Checked<(&'a [u8], usize)> {
        let first = long(page, at);
        let needed = (HEADER_BYTES + length).div_ceil(self.page_bytes);
        let offset = self.take(first, needed)?;
        let head = &self.data[offset..offset + HEADER_BYTES];
        let count = word(head, 12) as usize;
        // A value that was replaced within one commit may have more pages than it needs.
        if long(head, 0) != first || short(head, 10) != OVERFLOW || count < needed {
            return Err(format!("page {first} does not begin {needed} pages of a value"));
        }
        self.take(first + needed as u64, count - needed)?;
        let begin = offset + HEADER_BYTES;
        Ok((&self.data[begin..begin + length], count))
    }

    /// Check a database's pages; return the entries of a list, or of a copy's bucket `meta`.
    fn walk(&mut self, record: &[u8], place: &str, kind: Kind) -> Checked<Vec<Entry<'a>>> {
        let root = long(record, ROOT);
        let mut found = Vec::new();
        let (mut branches, mut leaves, mut overflows, mut entries) = (0_u64, 0_u64, 0_u64, 0_u64);
        let mut depth_of_leaves = 0;
        let mut last: &[u8] = &[];
        // The children still to visit, the next one last: number, least key, depth.
        let mut waiting: Vec<(u64, &'a [u8], usize)> = Vec::new();
        if root != NO_PAGE {
            waiting.push((root, &[], 1));
        }
        while let Some((number, least, depth)) = waiting.pop() {
            let (of_page, page) = self.page(number)?;
            if of_page != LEAF && (of_page != BRANCH || depth >= DEPTH_MAX) {
                return Err(format!("page {number} is of kind {of_page:#x} at depth {depth}"));
            }
            self.read_nodes(number, page, of_page == LEAF)?;
            // Keys before a branch's key must be less than it, and keys behind it must not be.
            if !least.is_empty() && !is_less(kind, last, least) {
                return Err(unordered(number));
            }
            if of_page == BRANCH {
                branches += 1;
                if self.nodes.len() < 2 && kind != Kind::Free {
                    return Err(format!("page {number} leads to one page only"));
                }
                let begin = waiting.len();
                for (place, node) in self.nodes.iter().enumerate() {
                    let [low, high, top] = node.words.map(u64::from);
                    // LMDB ignores the first key of a branch.
                    let key = if place == 0 { least } else { node.key };
                    let before = waiting.last().filter(|_| place > 0);
                    if node.key.len() > KEY_BYTES_MAX
                        || before
                            .is_some_and(|one| !is_key(kind, key) || !is_less(kind, one.1, key))
                    {
                        return Err(unordered(number));
                    }
                    waiting.push((low | high << 16 | top << 32, key, depth + 1));
                }
                waiting[begin..].reverse();
                continue;
            }
            leaves += 1;
            if leaves > 1 && depth != depth_of_leaves {
                return Err(format!("page {number} is at depth {depth}, not {depth_of_leaves}"));
            }
            depth_of_leaves = depth;
            let nodes = std::mem::take(&mut self.nodes);
            for Node { words: [low, high, flags], key, value_at } in &nodes {
                let length = usize::from(*low) | usize::from(*high) << 16;
                if !is_key(kind, key)
                    || (!least.is_empty() && is_less(kind, key, least))
                    || !is_less(kind, last, key)
                {
                    return Err(unordered(number));
                }
                last = key;
                entries += 1;
                let value = match (*flags, kind) {
                    (BIG_DATA, Kind::Free | Kind::Bucket) => {
                        let (value, count) = self.overflow(page, *value_at, length)?;
                        overflows += count as u64;
                        value
                    }
                    (0, Kind::Free | Kind::Bucket) | (SUB_DATABASE, Kind::Main) => {
                        &page[*value_at..*value_at + length]
                    }
                    _ => return Err(format!("an entry of page {number} is of kind {flags:#x}")),
                };
                match kind {
                    Kind::Free => found.push((*key, value)),
                    Kind::Main if length == DATABASE_BYTES => found.push((*key, value)),
                    Kind::Main => return Err(outside(number)),
                    Kind::Bucket if !self.is_copy => {}
                    Kind::Bucket => {
                        if value.len() < 4 || crc32c(crc32c(0, key), value) != RESIDUE {
                            let key = hex(key);
                            return Err(format!("the checksum of {key} in {place} does not fit"));
                        }
                        if place == META {
                            found.push((*key, value));
                        }
                    }
                }
            }
            self.nodes = nodes;
        }
        for (claimed, counted, what) in [
            (u64::from(short(record, 6)), depth_of_leaves as u64, "levels"),
            (long(record, 8), branches, "branches"),
            (long(record, 16), leaves, "leaves"),
            (long(record, 24), overflows, "pages of long values"),
            (long(record, 32), entries, "entries"),
        ] {
            if claimed != counted {
                return Err(format!("{place} has {counted} {what} and should have {claimed}"));
            }
        }
        Ok(found)
    }

    /// Check a list of free pages: its length, and page numbers that descend.
    fn check_free(&mut self, value: &[u8]) -> Checked<()> {
        let bad = || "the list of free pages is damaged".to_owned();
        if value.len() < NUMBER_BYTES || value.len() % NUMBER_BYTES != 0 {
            return Err(bad());
        }
        let count = long(value, 0);
        if count > (value.len() / NUMBER_BYTES) as u64 - 1 {
            return Err(bad());
        }
        let mut before = self.page_count as u64;
        for place in 1..=count as usize {
            let number = long(value, place * NUMBER_BYTES);
            if number >= before || number < META_PAGES as u64 {
                return Err(bad());
            }
            if std::mem::replace(&mut self.taken[number as usize], true) {
                return Err(format!("page {number} is free and used, or free twice"));
            }
            before = number;
        }
        Ok(())
    }
}

/// Whether a key may be in a database.
fn is_key(kind: Kind, key: &[u8]) -> bool {
    match kind {
        Kind::Free => key.len() == NUMBER_BYTES,
        Kind::Main | Kind::Bucket => !key.is_empty() && key.len() <= KEY_BYTES_MAX,
    }
}

/// Whether one key sorts before another; the empty key sorts before all others.
fn is_less(kind: Kind, one: &[u8], other: &[u8]) -> bool {
    match kind {
        Kind::Free => one.is_empty() || long(one, 0) < long(other, 0),
        Kind::Main | Kind::Bucket => one < other,
    }
}

fn outside(number: u64) -> String {
    format!("an entry of page {number} lies outside of it")
}

fn unordered(number: u64) -> String {
    format!("the keys of page {number} are not in order")
}

fn hex(data: &[u8]) -> String {
    data.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Check a commit; return the entries of a copy's bucket `meta`.
fn check<'a>(
    check: &mut Check<'a>,
    free: &[u8],
    main: &[u8],
    buckets: &[Vec<u8>],
) -> Checked<Vec<Entry<'a>>> {
    let mut meta = Vec::new();
    check.taken[..META_PAGES].fill(true);
    let found = check.walk(main, "the list of buckets", Kind::Main)?;
    if !found.iter().map(|(name, _)| *name).eq(buckets.iter().map(Vec::as_slice))
        && (check.is_copy || !found.is_empty())
    {
        return Err("its buckets are not those of a member".to_owned());
    }
    for (name, record) in found {
        let place = format!("bucket {}", String::from_utf8_lossy(name));
        let flags = short(record, 4);
        if flags != 0 {
            return Err(format!("{place} is of kind {flags:#x}"));
        }
        meta.extend(check.walk(record, &place, Kind::Bucket)?);
    }
    for (_, value) in check.walk(free, "the list of free pages", Kind::Free)? {
        check.check_free(value)?;
    }
    Ok(meta)
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // Nothing else calls it.
pub fn check_pages(
    py: Python<'_>,
    descriptor: i32,
    page_bytes: usize,
    page_count: usize,
    free: &[u8],
    main: &[u8],
    buckets: Vec<Vec<u8>>,
    is_copy: bool,
) -> PyResult<(Option<String>, Entries)> {
    py.detach(|| {
        let mapped = MappedFile::new(descriptor, is_copy)?;
        let (taken, nodes, spans) = (vec![false; page_count], Vec::new(), Vec::new());
        let data = mapped.bytes();
        let mut walk = Check { data, page_bytes, page_count, is_copy, taken, nodes, spans };
        Ok(match check(&mut walk, free, main, &buckets) {
            Ok(meta) => {
                (None, meta.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
            }
            Err(problem) => (Some(problem), Vec::new()),
        })
    })
}
