//! Skims records of the log that a starting member only has to check.
//!
//! `kvorum.storage.wal.skimming` documents the function. It passes entries and states in their usual form,
//! and stops before anything else, such as damage, which the Python code judges.

use crate::checksum::crc32c;
use crate::encoding::{number_at, varint};
use pyo3::prelude::*;

const LENGTH_MASK: u64 = (1 << 56) - 1;
const ENTRY: u8 = 2;
const STATE: u8 = 3;
const ENTRY_TYPE_MAX: u8 = 2;

/// Term, vote and commit index.
type State = (u64, u64, u64);

/// End offset, checksum there, count of records, count of states, last state, durable offset.
type Passed = (usize, u32, usize, usize, State, usize);

/// Read a record: its type, checksum and data, and the offset of the next record.
fn record(segment: &[u8], offset: usize) -> Option<(u8, u32, &[u8], usize)> {
    let word = u64::from_le_bytes(number_at(segment, offset)?);
    let length = usize::try_from(word & LENGTH_MASK).ok()?;
    let start = offset + 8;
    let end = start.checked_add(length)?;
    let padding = (8 - length % 8) % 8;
    let mark = if padding == 0 { 0 } else { 0x80 | padding as u64 };
    let stop = end.checked_add(padding)?;
    if word == 0 || word >> 56 != mark || stop > segment.len() {
        return None;
    }
    let body = &segment[start..end];
    if body.len() < 4 || body[0] != 0x08 || body[2] != 0x10 {
        return None;
    }
    let mut place = 3;
    let checksum = u32::try_from(varint(body, &mut place)?).ok()?;
    field(body, &mut place, 0x1A)?;
    let data = bytes(body, &mut place)?;
    (place == body.len()).then_some((body[1], checksum, data, stop))
}

/// Skip a tag; None if another byte is there.
fn field(data: &[u8], place: &mut usize, tag: u8) -> Option<()> {
    (*data.get(*place)? == tag).then_some(())?;
    *place += 1;
    Some(())
}

/// Skip a tag and read a number.
fn number(data: &[u8], place: &mut usize, tag: u8) -> Option<u64> {
    field(data, place, tag)?;
    varint(data, place)
}

/// Read a length and that many bytes.
fn bytes<'a>(data: &'a [u8], place: &mut usize) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(data, place)?).ok()?;
    let found = data.get(*place..place.checked_add(length)?)?;
    *place += length;
    Some(found)
}

/// Read the index of an entry; None if the entry is unusual.
fn index_of(data: &[u8]) -> Option<u64> {
    let mut place = 2;
    if data.len() < 2 || data[0] != 0x08 || data[1] > ENTRY_TYPE_MAX {
        return None;
    }
    number(data, &mut place, 0x10)?;
    let index = number(data, &mut place, 0x18)?;
    if place < data.len() {
        field(data, &mut place, 0x22)?;
        bytes(data, &mut place)?;
    }
    (place == data.len()).then_some(index)
}

fn state_of(data: &[u8]) -> Option<State> {
    let mut place = 0;
    let state = (
        number(data, &mut place, 0x08)?,
        number(data, &mut place, 0x10)?,
        number(data, &mut place, 0x18)?,
    );
    (place == data.len()).then_some(state)
}

#[pyfunction]
pub fn skim_records(
    segment: &[u8],
    mut offset: usize,
    mut checksum: u32,
    after: u64,
    mut state: State,
) -> Passed {
    let (mut records, mut states, mut durable) = (0, 0, 0);
    let mut before = [0, 0];
    let mut last = offset;
    while let Some((kind, stored, data, stop)) = record(segment, offset) {
        let continued = crc32c(checksum, data);
        if continued != stored {
            break;
        }
        if kind == ENTRY {
            if index_of(data).is_none_or(|index| index > after) {
                break;
            }
            if before == [ENTRY, STATE] {
                durable = last;
            }
        } else if kind == STATE {
            let Some(found) = state_of(data) else { break };
            if found.0 < state.0 || found.2 < state.2 {
                break;
            }
            state = found;
            states += 1;
        } else {
            break;
        }
        records += 1;
        checksum = continued;
        before = [before[1], kind];
        last = offset;
        offset = stop;
    }
    (offset, checksum, records, states, state, durable)
}
