//! Reads the parts of DER that certificates need: values, serial numbers, common names and
//! revocation lists.
//!
//! This module does not decide whether a certificate is genuine; `chains.rs` does.

pub const INTEGER: u8 = 0x02;
pub const OBJECT_IDENTIFIER: u8 = 0x06;
pub const UTC_TIME: u8 = 0x17;
pub const GENERALIZED_TIME: u8 = 0x18;
pub const SEQUENCE: u8 = 0x30;
pub const EXPLICIT_VERSION: u8 = 0xA0;

/// 2.5.4.3, the attribute "common name".
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// A cursor over consecutive DER values.
#[derive(Clone, Copy)]
pub struct Values<'a>(pub &'a [u8]);

impl<'a> Values<'a> {
    pub fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// Takes the next value if it has this tag.
    pub fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let (found, value) = ahead.next()?;
        (found == tag).then(|| {
            *self = ahead;
            value
        })
    }

    /// Takes the next value if it has this tag; returns it with its tag and length bytes.
    pub fn take_whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        self.take(tag)?;
        Some(&before[..before.len() - self.0.len()])
    }
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|digit| **digit == 0).count();
    &number[zeros..]
}

/// The fields in a certificate's signed part that follow its version.
fn certificate_fields(certificate: &[u8]) -> Option<Values<'_>> {
    let mut outer = Values(Values(certificate).take(SEQUENCE)?);
    let mut fields = Values(outer.take(SEQUENCE)?);
    fields.take(EXPLICIT_VERSION);
    Some(fields)
}

/// A certificate's serial number, without leading zeros.
pub fn serial_number(certificate: &[u8]) -> Option<&[u8]> {
    certificate_fields(certificate)?.take(INTEGER).map(without_leading_zeros)
}

/// The common name of a certificate's subject; the last one if there are several.
pub fn common_name(certificate: &[u8]) -> Option<&str> {
    let mut fields = certificate_fields(certificate)?;
    fields.take(INTEGER)?;
    for _algorithm_issuer_validity in 0..3 {
        fields.take(SEQUENCE)?;
    }
    let mut subject = Values(fields.take(SEQUENCE)?);
    let mut found = None;
    while let Some((_, set)) = subject.next() {
        let mut set = Values(set);
        while let Some((_, attribute)) = set.next() {
            let mut attribute = Values(attribute);
            if attribute.take(OBJECT_IDENTIFIER) == Some(COMMON_NAME) {
                found = std::str::from_utf8(attribute.next()?.1).ok();
            }
        }
    }
    found
}

/// The serial numbers that a revocation list names, without leading zeros.
pub fn revoked_serial_numbers(list: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut outer = Values(Values(list).take(SEQUENCE)?);
    let mut fields = Values(outer.take(SEQUENCE)?);
    fields.take(INTEGER);
    for _algorithm_issuer in 0..2 {
        fields.take(SEQUENCE)?;
    }
    for _this_and_next_update in 0..2 {
        let _ = fields.take(UTC_TIME).or_else(|| fields.take(GENERALIZED_TIME));
    }
    let mut revoked = Values(fields.take(SEQUENCE).unwrap_or_default());
    let mut numbers = Vec::new();
    while let Some((_, entry)) = revoked.next() {
        numbers.push(without_leading_zeros(Values(entry).take(INTEGER)?).to_vec());
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tag: u8, content: &[u8]) -> Vec<u8> {
        match content.len() {
            length @ ..0x80 => [&[tag, length as u8], content].concat(),
            length => [&[tag, 0x82, (length >> 8) as u8, length as u8], content].concat(),
        }
    }

    fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
        value(SEQUENCE, &parts.concat())
    }

    fn certificate(serial: &[u8], subject: &[(&[u8], &[u8])]) -> Vec<u8> {
        let names: Vec<_> = subject
            .iter()
            .map(|(kind, text)| {
                let attribute = sequence(&[value(OBJECT_IDENTIFIER, kind), value(0x0C, text)]);
                value(0x31, &attribute)
            })
            .collect();
        let signed = sequence(&[
            value(EXPLICIT_VERSION, &value(INTEGER, &[2])),
            value(INTEGER, serial),
            sequence(&[]),
            sequence(&[]),
            sequence(&[]),
            sequence(&names),
        ]);
        sequence(&[signed, sequence(&[]), value(0x03, b"signature")])
    }

    #[test]
    fn a_certificates_serial_number_and_last_common_name() {
        let long = [b'x'; 300];
        let der = certificate(
            &[0, 0x80, 1],
            &[(&[0x55, 0x04, 0x0A], b"org"), (COMMON_NAME, &long), (COMMON_NAME, b"root")],
        );
        assert_eq!(serial_number(&der), Some(&[0x80, 1][..]));
        assert_eq!(common_name(&der), Some("root"));
        assert_eq!(common_name(&certificate(&[1], &[])), None);
        for cut in 0..der.len() {
            assert_eq!(common_name(&der[..cut]), None);
        }
    }

    #[test]
    fn the_serial_numbers_of_a_list() {
        let head = [value(INTEGER, &[1]), sequence(&[]), sequence(&[]), value(UTC_TIME, b"now")];
        let entry = |serial: &[u8]| sequence(&[value(INTEGER, serial), value(UTC_TIME, b"then")]);
        let entries = sequence(&[entry(&[5]), entry(&[0, 0x90])]);
        let list = sequence(&[sequence(&[&head[..], &[entries]].concat())]);
        assert_eq!(revoked_serial_numbers(&list), Some(vec![vec![5], vec![0x90]]));
        let empty = sequence(&[sequence(&head)]);
        assert_eq!(revoked_serial_numbers(&empty), Some(vec![]));
        assert_eq!(revoked_serial_numbers(b"no list"), None);
    }
}
