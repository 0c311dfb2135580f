//! Writes the keys of a long response as JSON, many per call.
//!
//! `kvorum.server.http.encoding` documents the function. It handles `KeyValue`s in canonical form and
//! stops before any other, which the Python code then writes.

use kvorum_storage::encoding::varint;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The fields in order: tag, name with the JSON around it, whether the value is bytes.
const FIELDS: [(u8, &[u8], bool); 6] = [
    (0x0A, b",\"key\":\"", true),
    (0x10, b",\"create_revision\":\"", false),
    (0x18, b",\"mod_revision\":\"", false),
    (0x20, b",\"version\":\"", false),
    (0x2A, b",\"value\":\"", true),
    (0x30, b",\"lease\":\"", false),
];

/// Writes the messages of a repeated field from `offset` on; returns the text and the end offset.
///
/// The text has commas between the messages, and nothing around them.
#[pyfunction]
pub fn key_values_json<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    offset: usize,
    end: usize,
    tag: u8,
) -> (Bound<'py, PyBytes>, usize) {
    let data = data.as_bytes();
    let data = &data[..end.min(data.len())];
    let mut text = Vec::with_capacity((data.len() - offset.min(data.len())) * 3 / 2);
    let mut offset = offset;
    while let Some(after) = item(data, offset, tag, &mut text) {
        offset = after;
    }
    (PyBytes::new(py, &text), offset)
}

/// Writes one message and returns where it ends; None, with nothing written, if it is unusual.
fn item(data: &[u8], offset: usize, tag: u8, text: &mut Vec<u8>) -> Option<usize> {
    if data.get(offset) != Some(&tag) {
        return None;
    }
    let mut start = offset + 1;
    let length = varint(data, &mut start)?;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    let message = data.get(start..end)?;
    let before = text.len();
    if before > 0 {
        text.push(b',');
    }
    if fields(message, text).is_none() {
        text.truncate(before);
        return None;
    }
    Some(end)
}

fn fields(message: &[u8], text: &mut Vec<u8>) -> Option<()> {
    let begin = text.len();
    let mut offset = 0;
    for (tag, name, is_bytes) in FIELDS {
        if message.get(offset) != Some(&tag) {
            continue;
        }
        offset += 1;
        let number = varint(message, &mut offset)?;
        // Canonical messages leave out fields that are zero or empty.
        if number == 0 {
            return None;
        }
        text.extend_from_slice(name);
        if is_bytes {
            let start = offset;
            offset = start.checked_add(usize::try_from(number).ok()?)?;
            base64(message.get(start..offset)?, text);
        } else {
            decimal(number as i64, text);
        }
        text.push(b'"');
    }
    if offset != message.len() {
        return None;
    }
    if text.len() == begin {
        text.push(b'{');
    } else {
        text[begin] = b'{';
    }
    text.push(b'}');
    Some(())
}

fn base64(content: &[u8], text: &mut Vec<u8>) {
    let digit = |bits: u32| ALPHABET[(bits & 0x3F) as usize];
    let mut groups = content.chunks_exact(3);
    for group in &mut groups {
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        text.extend_from_slice(&[
            digit(bits >> 18),
            digit(bits >> 12),
            digit(bits >> 6),
            digit(bits),
        ]);
    }
    match *groups.remainder() {
        [first] => {
            let bits = u32::from(first) << 16;
            text.extend_from_slice(&[digit(bits >> 18), digit(bits >> 12), b'=', b'=']);
        }
        [first, second] => {
            let bits = u32::from(first) << 16 | u32::from(second) << 8;
            text.extend_from_slice(&[digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), b'=']);
        }
        _ => {}
    }
}

fn decimal(number: i64, text: &mut Vec<u8>) {
    let mut digits = [0_u8; 20];
    let mut place = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        place -= 1;
        digits[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        text.push(b'-');
    }
    text.extend_from_slice(&digits[place..]);
}
