//! A copy of a database file, checked page by page before it counts.
//!
//! `kvorum.backend.copies` documents the checks, and has the same ones in Python.

use crate::rows::crc32c;
use pyo3::prelude::*;
use std::fmt::Write;

const PAGE_HEAD_BYTES: usize = 16;
const META_BYTES: usize = 152;
const DATABASE_BYTES: usize = 48;
const NODE_BYTES: usize = 8;
const MAGIC: u32 = 0xBEEF_C0DE;
const DATA_VERSION: u32 = 1;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
const IS_BIG: u16 = 0x01;
const IS_DATABASE: u16 = 0x02;
const NO_PAGE: u64 = u64::MAX;
const DEPTH_MAX: usize = 32;
const KEY_BYTES_MAX: usize = 511;
/// The CRC-32C of any data followed by its own CRC-32C.
const RESIDUE: u32 = 0x4867_4BC7;

/// What is wrong with a copy.
type Checked<T> = Result<T, String>;

fn short(data: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

fn long(data: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|byte| data[at + byte]))
}

/// A file that is mapped to be read.
struct Mapped {
    address: *mut libc::c_void,
    length: usize,
}

impl Mapped {
    fn new(descriptor: i32) -> std::io::Result<Self> {
        // SAFETY: a zeroed `stat` is a valid one, and `fstat` fills it.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a local of the right type.
        if unsafe { libc::fstat(descriptor, &raw mut status) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let length = status.st_size as usize;
        let (kind, flags) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping, which nothing else refers to.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length.max(1), kind, flags, descriptor, 0) };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { address, length })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that length and lives as long as this; its file has one writer,
        // which has written all of it.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.address, self.length.max(1)) };
    }
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
    page_count: u64,
    reached: Vec<bool>,
}

impl<'a> Check<'a> {
    /// Read the meta pages; return the check, and the database that lists the buckets.
    fn new(data: &'a [u8]) -> Checked<(Self, &'a [u8])> {
        let length = data.len();
        let page_bytes = if length < META_BYTES { 0 } else { word(data, 40) as usize };
        if !(512..=65536).contains(&page_bytes) || !page_bytes.is_power_of_two() {
            return Err(format!("its pages cannot have {page_bytes} bytes"));
        }
        let mut newest: Option<(u64, &[u8], u64)> = None;
        for number in 0..2_usize {
            let Some(meta) = data.get(number * page_bytes..number * page_bytes + META_BYTES) else {
                return Err(format!("it has {length} bytes"));
            };
            if long(meta, 0) != number as u64
                || short(meta, 10) != META
                || word(meta, 16) != MAGIC
                || word(meta, 20) != DATA_VERSION
            {
                return Err(format!("page {number} is not a meta page"));
            }
            if word(meta, 40) as usize != page_bytes || long(meta, 80) != NO_PAGE {
                return Err(format!("meta page {number} says that pages are free"));
            }
            let (last, transaction) = (long(meta, 136), long(meta, 144));
            if newest.is_none_or(|(before, _, _)| transaction > before) {
                newest = Some((transaction, &meta[88..88 + DATABASE_BYTES], last));
            }
        }
        let Some((_, main, last)) = newest else { unreachable!("both meta pages were read") };
        let expected = (u128::from(last) + 1) * page_bytes as u128;
        if length as u128 != expected {
            return Err(format!("it has {length} bytes and should have {expected}"));
        }
        let page_count = last + 1;
        let mut reached = vec![false; page_count as usize];
        reached[..2].fill(true);
        Ok((Self { data, page_bytes, page_count, reached }, main))
    }

    fn reach(&mut self, number: u64, count: usize) -> Checked<usize> {
        if u128::from(number) + count as u128 > u128::from(self.page_count) {
            return Err(format!("there is no page {number} among {}", self.page_count));
        }
        let first = number as usize;
        let marks = &mut self.reached[first..first + count];
        if marks.contains(&true) {
            return Err(format!("page {number} is reached twice"));
        }
        marks.fill(true);
        Ok(first * self.page_bytes)
    }

    fn page(&mut self, number: u64) -> Checked<(u16, &'a [u8])> {
        let offset = self.reach(number, 1)?;
        let page = &self.data[offset..offset + self.page_bytes];
        let own = long(page, 0);
        if own != number {
            return Err(format!("page {number} says that it is page {own}"));
        }
        Ok((short(page, 10), page))
    }

    fn nodes(number: u64, page: &'a [u8], nodes: &mut Vec<Node<'a>>) -> Checked<()> {
        let (lower, upper) = (usize::from(short(page, 12)), usize::from(short(page, 14)));
        if lower <= PAGE_HEAD_BYTES || lower > upper || upper > page.len() || lower % 2 == 1 {
            return Err(format!("page {number} has no room for its entries"));
        }
        nodes.clear();
        for place in (PAGE_HEAD_BYTES..lower).step_by(2) {
            let start = usize::from(short(page, place));
            let begin = start + NODE_BYTES;
            if start < upper || begin > page.len() {
                return Err(outside(number));
            }
            let value_at = begin + usize::from(short(page, start + 6));
            let Some(key) = page.get(begin..value_at) else { return Err(outside(number)) };
            let words = [short(page, start), short(page, start + 2), short(page, start + 4)];
            nodes.push(Node { words, key, value_at });
        }
        Ok(())
    }

    fn overflow(
        &mut self,
        number: u64,
        page: &[u8],
        at: usize,
        length: usize,
    ) -> Checked<&'a [u8]> {
        if at + 8 > page.len() {
            return Err(outside(number));
        }
        let first = long(page, at);
        let count = (PAGE_HEAD_BYTES + length).div_ceil(self.page_bytes);
        let offset = self.reach(first, count)?;
        let head = &self.data[offset..offset + PAGE_HEAD_BYTES];
        if long(head, 0) != first || short(head, 10) != OVERFLOW || word(head, 12) as usize != count
        {
            return Err(format!("page {first} does not begin {count} pages of a value"));
        }
        Ok(&self.data[offset + PAGE_HEAD_BYTES..offset + PAGE_HEAD_BYTES + length])
    }

    /// Check the pages of a bucket; return the entries of the list of buckets.
    fn walk(
        &mut self,
        database: &[u8],
        place: &str,
        is_main: bool,
    ) -> Checked<Vec<(&'a [u8], &'a [u8])>> {
        let (flags, entries, root) = (short(database, 4), long(database, 32), long(database, 40));
        if flags != 0 {
            return Err(format!("{place} is of kind {flags:#x}"));
        }
        let mut found = Vec::new();
        let mut count = 0;
        let mut last: &[u8] = &[];
        let mut nodes = Vec::new();
        // The children still to visit, the next one last: number, least key, depth.
        let mut waiting: Vec<(u64, &'a [u8], usize)> = Vec::new();
        if root != NO_PAGE {
            waiting.push((root, &[], 0));
        }
        while let Some((number, least, depth)) = waiting.pop() {
            let (kind, page) = self.page(number)?;
            Self::nodes(number, page, &mut nodes)?;
            if kind == BRANCH && depth < DEPTH_MAX {
                let begin = waiting.len();
                for node in &nodes {
                    let before = waiting.last().filter(|_| waiting.len() > begin);
                    if before.is_some_and(|(_, key, _)| node.key <= *key) {
                        return Err(unordered(number));
                    }
                    // The first key of a branch means nothing.
                    let key = if before.is_some() { node.key } else { least };
                    let [low, high, top] = node.words.map(u64::from);
                    waiting.push((low | high << 16 | top << 32, key, depth + 1));
                }
                waiting[begin..].reverse();
                continue;
            }
            if kind != LEAF {
                return Err(format!("page {number} is of kind {kind:#x}, not a branch or a leaf"));
            }
            for Node { words: [low, high, flags], key, value_at } in &nodes {
                let length = usize::from(*low) | usize::from(*high) << 16;
                if key.is_empty() || key.len() > KEY_BYTES_MAX || *key < least || last >= *key {
                    return Err(unordered(number));
                }
                last = key;
                count += 1;
                let value = if *flags == IS_BIG && !is_main {
                    self.overflow(number, page, *value_at, length)?
                } else if *flags == if is_main { IS_DATABASE } else { 0 } {
                    let value = page.get(*value_at..*value_at + length);
                    value.ok_or_else(|| outside(number))?
                } else {
                    return Err(format!("an entry of page {number} is of kind {flags:#x}"));
                };
                if is_main {
                    if length != DATABASE_BYTES {
                        return Err(outside(number));
                    }
                    found.push((*key, value));
                } else if value.len() < 4 || crc32c(crc32c(0, key), value) != RESIDUE {
                    return Err(format!("the checksum of {} in {place} does not fit", hex(key)));
                }
            }
        }
        if count != entries {
            return Err(format!("{place} has {count} entries and should have {entries}"));
        }
        Ok(found)
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

fn check(data: &[u8], buckets: &[Vec<u8>]) -> Checked<()> {
    let (mut check, main) = Check::new(data)?;
    let found = check.walk(main, "the list of buckets", true)?;
    if !found.iter().map(|(name, _)| *name).eq(buckets.iter().map(Vec::as_slice)) {
        return Err("its buckets are not those of a member".to_owned());
    }
    for (name, database) in found {
        let place = format!("bucket {}", String::from_utf8_lossy(name));
        check.walk(database, &place, false)?;
    }
    Ok(())
}

#[pyfunction]
pub fn check_copy(
    py: Python<'_>,
    descriptor: i32,
    buckets: Vec<Vec<u8>>,
) -> PyResult<Option<String>> {
    py.detach(|| {
        let mapped = Mapped::new(descriptor)?;
        Ok(check(mapped.bytes(), &buckets).err())
    })
}
