//! Converts many rows per call between etcd's pages, our database file and the index.
//!
//! `kvorum.storage.backend.native` documents the functions. Each handles rows in their usual form and
//! leaves everything else, such as damage, to the Python code that it replaces, which reports the
//! errors. The functions here therefore have no errors of their own.

use crate::checksum::crc32c;
use crate::encoding::{number_at, varint};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyInt, PyList, PyTuple};

const HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;
const LEAF: u16 = 0x02;
/// A page ends when the next entry would exceed this size.
const FILL_BYTES: usize = PAGE_BYTES * 9 / 10;

const ROW_KEY_BYTES: usize = 17;
const CHECKSUM_BYTES: usize = 4;

const RECORD_BYTES: usize = 12;
const HEAD_BYTES: usize = 20;
const GENERATION: usize = 16;
/// Longer histories are bytearrays, which grow in place.
const BYTEARRAY_FROM_BYTES: usize = 600;

/// Read a revision in the index's form: `main << 32 | sub << 1 | tombstone`.
pub(crate) fn revision_of(row_key: &[u8]) -> Option<u128> {
    let is_tombstone = match row_key.len() {
        ROW_KEY_BYTES => false,
        18 if row_key[ROW_KEY_BYTES] == b't' => true,
        _ => return None,
    };
    let main = u64::from_be_bytes(row_key[..8].try_into().ok()?);
    let sub = u64::from_be_bytes(row_key[9..ROW_KEY_BYTES].try_into().ok()?);
    if row_key[8] != b'_' || sub >> 31 != 0 {
        return None;
    }
    Some(u128::from(main) << 32 | u128::from(sub) << 1 | u128::from(is_tombstone))
}

/// Return a value without its checksum, if the checksum is right.
pub(crate) fn opened<'a>(row_key: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (value, checksum) = sealed.split_at_checked(sealed.len().checked_sub(CHECKSUM_BYTES)?)?;
    let expected = crc32c(crc32c(0, row_key), value);
    (expected.to_le_bytes() == checksum).then_some(value)
}

/// The fields of a stored `KeyValue` that the index needs.
#[derive(Default)]
pub(crate) struct KeyValue<'a> {
    key: &'a [u8],
    create: u64,
    modified: u64,
    version: u64,
    lease: u64,
}

/// Read the canonical form of a `KeyValue` with a key: fields in order, zero ones left out.
pub(crate) fn key_value(data: &[u8]) -> Option<KeyValue<'_>> {
    let mut found = KeyValue::default();
    let mut offset = 0;
    let mut before = 0;
    while offset < data.len() {
        let tag = data[offset];
        offset += 1;
        let number = varint(data, &mut offset)?;
        if tag <= before || number == 0 {
            return None;
        }
        before = tag;
        match tag {
            0x0A | 0x2A => {
                let end = offset.checked_add(usize::try_from(number).ok()?)?;
                let content = data.get(offset..end)?;
                offset = end;
                if tag == 0x0A {
                    found.key = content;
                }
            }
            0x10 => found.create = number,
            0x18 => found.modified = number,
            0x20 => found.version = number,
            0x30 => found.lease = number,
            _ => return None,
        }
    }
    (!found.key.is_empty()).then_some(found)
}

/// Offsets of an entry's key, of its value, and of the value's end.
type Span = (usize, usize, usize);

/// Pages, the first key and number of each leaf, and the number of rows in them.
type Leaves<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, usize);

/// Read one leaf of bucket `key` at the start of `pages`: its entries' offsets, and its length.
fn leaf(
    pages: &[u8],
    number: u64,
    page_bytes: usize,
    first: &[u8],
    after: &[u8],
) -> Option<(Vec<Span>, usize)> {
    if u64::from_le_bytes(number_at(pages, 0)?) != number
        || u16::from_le_bytes(number_at(pages, 8)?) != LEAF
    {
        return None;
    }
    let count = usize::from(u16::from_le_bytes(number_at(pages, 10)?));
    let overflow = u32::from_le_bytes(number_at(pages, 12)?) as usize;
    let page = pages.get(..page_bytes.checked_mul(overflow + 1)?)?;
    let end = HEADER_BYTES + count * ELEMENT_BYTES;
    if count == 0 || end > page.len() {
        return None;
    }
    let mut entries = Vec::with_capacity(count);
    let mut last = after;
    for start in (HEADER_BYTES..end).step_by(ELEMENT_BYTES) {
        let word = |at: usize| Some(u32::from_le_bytes(number_at(page, start + at)?) as usize);
        let begin = start + word(4)?;
        let middle = begin + word(8)?;
        let behind = middle + word(12)?;
        if word(0)? != 0 || begin < end || behind > page.len() {
            return None;
        }
        let (key, value) = (&page[begin..middle], &page[middle..behind]);
        let revision = revision_of(key)?;
        if key <= last || key < first {
            return None;
        }
        last = key;
        // A row without a value marks the revision to which a restored snapshot was raised.
        if !value.is_empty() {
            let kv = key_value(value)?;
            if revision & 1 == 0 && u128::from(kv.modified) != revision >> 32 {
                return None;
            }
        }
        entries.push((begin, middle, behind));
    }
    Some((entries, page.len()))
}

#[pyfunction]
pub fn rows_of_leaves<'py>(
    py: Python<'py>,
    pages: &[u8],
    page_bytes: usize,
    leaves: &Bound<'py, PyList>,
    after: &[u8],
    reached: &Bound<'py, PyByteArray>,
) -> PyResult<(usize, Bound<'py, PyList>)> {
    let rows = PyList::empty(py);
    let mut sealed = Vec::new();
    let mut last: Option<Bound<'py, PyBytes>> = None;
    let mut base = 0;
    for (done, each) in leaves.iter().enumerate() {
        let (number, first): (usize, Bound<'py, PyBytes>) = each.extract()?;
        if done == 0 {
            base = number;
        }
        let Some(offset) = number.checked_sub(base).map(|pages| pages * page_bytes) else {
            return Ok((done, rows));
        };
        let bound = last.as_ref().map_or(after, |key| key.as_bytes());
        let found = pages
            .get(offset..)
            .and_then(|pages| leaf(pages, number as u64, page_bytes, first.as_bytes(), bound));
        let Some((entries, length)) = found else { return Ok((done, rows)) };
        // SAFETY: the GIL is held, and nothing is called that could let other code run.
        let marks = unsafe { reached.as_bytes_mut() };
        match marks.get_mut(number..number + length / page_bytes) {
            Some(marks) if marks.iter().all(|mark| *mark == 0) => marks.fill(1),
            _ => return Ok((done, rows)),
        }
        let page = &pages[offset..offset + length];
        for (begin, middle, behind) in entries {
            let (key, value) = (&page[begin..middle], &page[middle..behind]);
            sealed.clear();
            sealed.extend_from_slice(value);
            sealed.extend_from_slice(&crc32c(crc32c(0, key), value).to_le_bytes());
            let key = PyBytes::new(py, key);
            rows.append(PyTuple::new(py, [&key, &PyBytes::new(py, &sealed)])?)?;
            last = Some(key);
        }
    }
    Ok((leaves.len(), rows))
}

#[pyfunction]
pub fn leaves_of_rows<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyList>,
    number: u64,
    is_last: bool,
) -> PyResult<Option<Leaves<'py>>> {
    let mut pages: Vec<u8> = Vec::new();
    let children = PyList::empty(py);
    let mut opened_rows = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let (key, sealed): (Bound<'py, PyBytes>, Bound<'py, PyBytes>) = row.extract()?;
        if opened(key.as_bytes(), sealed.as_bytes()).is_none() {
            return Ok(None);
        }
        opened_rows.push((key, sealed));
    }
    let value_of = |sealed: &Bound<'py, PyBytes>| sealed.as_bytes().len() - CHECKSUM_BYTES;
    let mut done = 0;
    while done < opened_rows.len() {
        let mut used = HEADER_BYTES;
        let mut end = done;
        while let Some((key, sealed)) = opened_rows.get(end) {
            used += ELEMENT_BYTES + key.as_bytes().len() + value_of(sealed);
            if used > FILL_BYTES && end > done {
                break;
            }
            end += 1;
        }
        if end == opened_rows.len() && used <= FILL_BYTES && !is_last {
            break;
        }
        let leaf = &opened_rows[done..end];
        let begin = pages.len();
        let page = number + (begin / PAGE_BYTES) as u64;
        let size: usize = leaf
            .iter()
            .map(|(key, sealed)| ELEMENT_BYTES + key.as_bytes().len() + value_of(sealed))
            .sum();
        let count = (HEADER_BYTES + size).div_ceil(PAGE_BYTES);
        pages.extend_from_slice(&page.to_le_bytes());
        pages.extend_from_slice(&LEAF.to_le_bytes());
        pages.extend_from_slice(&(leaf.len() as u16).to_le_bytes());
        pages.extend_from_slice(&((count - 1) as u32).to_le_bytes());
        let mut position = ELEMENT_BYTES * leaf.len();
        for (key, sealed) in leaf {
            let lengths = [0, position, key.as_bytes().len(), value_of(sealed)];
            for word in lengths {
                pages.extend_from_slice(&(word as u32).to_le_bytes());
            }
            position = position + lengths[2] + lengths[3] - ELEMENT_BYTES;
        }
        for (key, sealed) in leaf {
            pages.extend_from_slice(key.as_bytes());
            pages.extend_from_slice(&sealed.as_bytes()[..value_of(sealed)]);
        }
        pages.resize(begin + count * PAGE_BYTES, 0);
        children.append((&leaf[0].0, page))?;
        done = end;
    }
    Ok(Some((PyBytes::new(py, &pages), children, done)))
}

/// Append a revision to a history, as `kvorum.state.mvcc.history.appended` does; None if it grew in
/// place.
fn appended<'py>(entry: &Bound<'py, PyAny>, revision: u128) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = entry.py();
    let record = record_of(revision);
    if let Ok(history) = entry.cast::<PyByteArray>() {
        let length = history.len();
        history.resize(length + RECORD_BYTES)?;
        // SAFETY: the GIL is held, and nothing is called that could let other code run.
        let bytes = unsafe { history.as_bytes_mut() };
        if bytes[length - 1] & 1 == 1 {
            let count = ((length - HEAD_BYTES) / RECORD_BYTES) as u32;
            bytes[GENERATION..HEAD_BYTES].copy_from_slice(&count.to_be_bytes());
        }
        bytes[length..].copy_from_slice(&record);
        return Ok(None);
    }
    if let Ok(history) = entry.cast::<PyBytes>() {
        let bytes = history.as_bytes();
        let mut longer = Vec::with_capacity(bytes.len() + RECORD_BYTES);
        longer.extend_from_slice(bytes);
        longer.extend_from_slice(&record);
        if bytes[bytes.len() - 1] & 1 == 1 {
            let count = ((bytes.len() - HEAD_BYTES) / RECORD_BYTES) as u32;
            longer[GENERATION..HEAD_BYTES].copy_from_slice(&count.to_be_bytes());
        } else if bytes.len() > BYTEARRAY_FROM_BYTES {
            return Ok(Some(PyByteArray::new(py, &longer).into_any()));
        }
        return Ok(Some(PyBytes::new(py, &longer).into_any()));
    }
    let previous: u128 = match entry.extract::<i64>() {
        Ok(small) => small as u128,
        Err(_) => entry.extract()?,
    };
    let (create, version, generation) =
        if previous & 1 == 1 { (0, 0, 1) } else { ((previous >> 32) as u64, 1, 0) };
    let mut history = head_of(create, version, generation);
    history.extend_from_slice(&record_of(previous));
    history.extend_from_slice(&record);
    Ok(Some(PyBytes::new(py, &history).into_any()))
}

fn record_of(revision: u128) -> [u8; RECORD_BYTES] {
    let bytes = revision.to_be_bytes();
    std::array::from_fn(|at| bytes[at + bytes.len() - RECORD_BYTES])
}

fn head_of(create: u64, version: u64, generation: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES + 2 * RECORD_BYTES);
    head.extend_from_slice(&create.to_be_bytes());
    head.extend_from_slice(&version.to_be_bytes());
    head.extend_from_slice(&generation.to_be_bytes());
    head
}

/// A revision as Python's integer; nearly all of them are small.
pub(crate) fn integer(py: Python<'_>, revision: u128) -> PyResult<Bound<'_, PyInt>> {
    Ok(match i64::try_from(revision) {
        Ok(small) => small.into_pyobject(py)?,
        Err(_) => revision.into_pyobject(py)?,
    })
}

/// Add a row to an index and note the lease of its key.
pub(crate) fn note(
    entries: &Bound<'_, PyDict>,
    leases: &Bound<'_, PyDict>,
    are_leases: &mut bool,
    revision: u128,
    kv: &KeyValue<'_>,
) -> PyResult<()> {
    let py = entries.py();
    let key = PyBytes::new(py, kv.key);
    match entries.get_item(&key)? {
        Some(entry) => {
            if let Some(entry) = appended(&entry, revision)? {
                entries.set_item(&key, entry)?;
            }
        }
        None if revision & 1 == 1 || kv.version == 1 && u128::from(kv.create) == revision >> 32 => {
            entries.set_item(&key, integer(py, revision)?)?;
        }
        None => {
            let mut history = head_of(kv.create, kv.version, 0);
            history.extend_from_slice(&record_of(revision));
            entries.set_item(&key, PyBytes::new(py, &history))?;
        }
    }
    if kv.lease != 0 {
        leases.set_item(&key, kv.lease as i64)?;
        *are_leases = true;
    } else if *are_leases && leases.contains(&key)? {
        leases.del_item(&key)?;
    }
    Ok(())
}

#[pyfunction]
pub fn note_rows<'py>(
    entries: &Bound<'py, PyDict>,
    leases: &Bound<'py, PyDict>,
    rows: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let mut sound = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        let (key, sealed): (Bound<'py, PyBytes>, Bound<'py, PyBytes>) = row.extract()?;
        let (Some(revision), Some(value)) =
            (revision_of(key.as_bytes()), opened(key.as_bytes(), sealed.as_bytes()))
        else {
            return Ok(false);
        };
        if value.is_empty() {
            continue;
        }
        if key_value(value).is_none() {
            return Ok(false);
        }
        sound.push((revision, sealed));
    }
    let mut are_leases = !leases.is_empty();
    for (revision, sealed) in sound {
        let value = &sealed.as_bytes()[..sealed.as_bytes().len() - CHECKSUM_BYTES];
        let Some(kv) = key_value(value) else { unreachable!("it was read a moment ago") };
        note(entries, leases, &mut are_leases, revision, &kv)?;
    }
    Ok(true)
}
