//! Reads numbers in records: varints of protobuf, and the bytes of fixed ones.

/// Read a varint in its shortest form.
#[inline]
pub fn varint(data: &[u8], offset: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let byte = *data.get(*offset)?;
        *offset += 1;
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return (byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}

/// Read the bytes of a number; None if they are not all there.
pub fn number_at<const N: usize>(data: &[u8], offset: usize) -> Option<[u8; N]> {
    data.get(offset..offset + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &[u8]) -> Option<(u64, usize)> {
        let mut offset = 0;
        varint(data, &mut offset).map(|number| (number, offset))
    }

    #[test]
    fn only_the_shortest_form_of_a_varint_is_read() {
        assert_eq!(read(&[0]), Some((0, 1)));
        assert_eq!(read(&[0x7F, 1]), Some((127, 1)));
        assert_eq!(read(&[0x80, 1]), Some((128, 2)));
        let mut longest = [0xFF; 10];
        longest[9] = 1;
        assert_eq!(read(&longest), Some((u64::MAX, 10)));
        longest[9] = 2;
        let unusual: [&[u8]; 5] = [&[], &[0x80], &[0x80, 0], &longest, &[0xFF; 11]];
        for data in unusual {
            assert_eq!(read(data), None);
        }
    }
}
