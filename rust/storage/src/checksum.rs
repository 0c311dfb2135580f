//! CRC-32C, the checksum of rows and of log records.
//!
//! Processors compute it where they have the instruction; a table serves everywhere else.

use std::sync::LazyLock;

/// CRC-32C, continued from the checksum of what came before.
pub fn crc32c(checksum: u32, data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor was found to have the instructions.
        return unsafe { crc32c_sse42(checksum, data) };
    }
    crc32c_table(checksum, data)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn crc32c_sse42(checksum: u32, data: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let words = data.chunks_exact(8);
    let rest = words.remainder();
    let mut state = u64::from(!checksum);
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let mut state = state as u32;
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    !state
}

fn crc32c_table(checksum: u32, data: &[u8]) -> u32 {
    static TABLE: LazyLock<[u32; 256]> = LazyLock::new(|| {
        std::array::from_fn(|byte| {
            (0..8).fold(byte as u32, |state, _| {
                if state & 1 == 1 { state >> 1 ^ 0x82F6_3B78 } else { state >> 1 }
            })
        })
    });
    let table = &*TABLE;
    !data.iter().fold(!checksum, |state, byte| {
        table[((state ^ u32::from(*byte)) & 0xFF) as usize] ^ state >> 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_gives_the_known_checksums() {
        assert_eq!(crc32c(0, b""), 0);
        assert_eq!(crc32c(0, b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8A91_36AA);
        let data: Vec<u8> = (0..=255).collect();
        for length in 0..data.len() {
            let (begin, rest) = data.split_at(length);
            assert_eq!(crc32c(7, begin), crc32c_table(7, begin));
            assert_eq!(crc32c(crc32c(7, begin), rest), crc32c_table(7, &data));
        }
    }
}
