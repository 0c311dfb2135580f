//! Finds the newest row of each key, among more keys than fit into memory.
//!
//! `kvorum.storage.backend.native` documents the class. It identifies a key by a 128-bit hash, under seeds
//! drawn for each instance, so that nobody can prepare two keys that collide.

use crate::checksum::crc32c;
use crate::rows::{opened, revision_of};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustc_hash::FxHashMap;
use std::hash::{BuildHasher, RandomState};

const RECORD_BYTES: usize = 24;
const GROUPS: usize = 256;

/// Flags of a row, kept below its place.
const TOMBSTONE: u64 = 1;
/// A tombstone of the main revision `deleted_at`, at which a deleted key stays deleted.
const FINAL: u64 = 2;
const FLAG_BITS: u32 = 2;

/// The key in a stored `KeyValue`; empty if it has none.
fn key_of(value: &[u8]) -> &[u8] {
    if value.first() != Some(&0x0A) {
        return &[];
    }
    let (mut offset, mut length) = (1, 0);
    for shift in (0..35).step_by(7) {
        let Some(byte) = value.get(offset) else { return &[] };
        offset += 1;
        length |= usize::from(byte & 0x7F) << shift;
        if *byte < 0x80 {
            return value.get(offset..offset + length).unwrap_or_default();
        }
    }
    &[]
}

#[pyclass(module = "kvorum.network.edge._native")]
pub struct NewestRows {
    seeds: (RandomState, RandomState),
    newest: FxHashMap<(u64, u64), u64>,
    /// A bit for each row, in order: whether another row of its key counts instead.
    superseded: Vec<u64>,
    noted: u64,
    deleted_at: u64,
}

impl NewestRows {
    fn place(&mut self, key: (u64, u64), row: u64) {
        let mut superseded = None;
        self.newest
            .entry(key)
            .and_modify(|present| {
                if *present & FINAL != 0 {
                    superseded = Some(row);
                } else {
                    superseded = Some(std::mem::replace(present, row));
                }
            })
            .or_insert(row);
        if let Some(row) = superseded {
            let place = (row >> FLAG_BITS) as usize;
            self.superseded[place / 64] |= 1 << (place % 64);
        }
    }

    fn is_superseded(&self, place: u64) -> bool {
        let word = self.superseded.get((place / 64) as usize).copied().unwrap_or_default();
        word >> (place % 64) & 1 == 1
    }
}

#[pymethods]
impl NewestRows {
    #[new]
    fn new(deleted_at: u64) -> Self {
        NewestRows {
            seeds: (RandomState::new(), RandomState::new()),
            newest: FxHashMap::default(),
            superseded: Vec::new(),
            noted: 0,
            deleted_at,
        }
    }

    fn __len__(&self) -> usize {
        self.newest.len()
    }

    fn note(&mut self, rows: &Bound<'_, PyList>) -> PyResult<bool> {
        let mut keys = Vec::with_capacity(rows.len());
        for row in rows.iter() {
            let (key, sealed): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = row.extract()?;
            let (key, sealed) = (key.as_bytes(), sealed.as_bytes());
            let (Some(revision), Some(value)) = (revision_of(key), opened(key, sealed)) else {
                return Ok(false);
            };
            let key = key_of(value);
            let mut flags = (revision & 1) as u64 * TOMBSTONE;
            if flags != 0 && revision >> 32 == u128::from(self.deleted_at) {
                flags |= FINAL;
            }
            keys.push(((self.seeds.0.hash_one(key), self.seeds.1.hash_one(key)), flags));
        }
        let noted = self.noted + keys.len() as u64;
        self.superseded.resize(noted.div_ceil(64) as usize, 0);
        for (place, (key, flags)) in (self.noted..).zip(keys) {
            self.place(key, place << FLAG_BITS | flags);
        }
        self.noted = noted;
        Ok(true)
    }

    fn drain<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut groups: Vec<Vec<u8>> = vec![Vec::new(); GROUPS];
        for ((first, second), row) in self.newest.drain() {
            let group = &mut groups[(first % GROUPS as u64) as usize];
            for word in [first, second, row] {
                group.extend_from_slice(&word.to_le_bytes());
            }
        }
        PyList::new(py, groups.iter().map(|group| PyBytes::new(py, group)))
    }

    fn load(&mut self, records: &[u8]) {
        for record in records.chunks_exact(RECORD_BYTES) {
            let word =
                |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap_or_default());
            self.place((word(0), word(8)), word(16));
        }
    }

    fn live(&self) -> usize {
        self.newest.values().filter(|row| *row & TOMBSTONE == 0).count()
    }

    fn checksum(
        &self,
        value: u32,
        rows: &Bound<'_, PyList>,
        place: u64,
        compacted: i64,
    ) -> PyResult<Option<u32>> {
        let mut checksum = value;
        for (place, row) in (place..).zip(rows.iter()) {
            let (key, sealed): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = row.extract()?;
            let (key, sealed) = (key.as_bytes(), sealed.as_bytes());
            let (Some(revision), Some(value)) = (revision_of(key), opened(key, sealed)) else {
                return Ok(None);
            };
            let is_compacted = (revision >> 32) as i128 <= i128::from(compacted);
            if !is_compacted || revision & 1 == 0 && !self.is_superseded(place) {
                checksum = crc32c(crc32c(checksum, key), value);
            }
        }
        Ok(Some(checksum))
    }
}
