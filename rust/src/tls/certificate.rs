//! Parses the parts of a certificate that `chains.rs` needs to verify it.
//!
//! Parsing is as strict as Go's where trust depends on it: an unreadable field is refused here, or
//! by the rule that needs it.

use crate::tls::der::{
    EXPLICIT_VERSION, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, SEQUENCE, UTC_TIME, Values,
};

const BOOLEAN: u8 = 0x01;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const EXPLICIT_EXTENSIONS: u8 = 0xA3;
const ISSUER_ID: u8 = 0x81;
const SUBJECT_ID: u8 = 0x82;
const EMAIL: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;

// Extensions' identifiers: the prefix 2.5.29, then the last byte of each.
const EXTENSIONS: [u8; 2] = [0x55, 0x1D];
const KEY_USAGE: u8 = 15;
const ALTERNATIVE_NAMES: u8 = 17;
const BASIC_CONSTRAINTS: u8 = 19;
const NAME_CONSTRAINTS: u8 = 30;
const DISTRIBUTION_POINTS: u8 = 31;
const POLICIES: u8 = 32;
const POLICY_CONSTRAINTS: u8 = 36;
const EXTENDED_KEY_USAGE: u8 = 37;

/// keyCertSign: bit 5 of the key usages, counted from the highest.
const KEY_CERT_SIGN: u8 = 0x04;
const V3: u8 = 2;

#[derive(Debug, Default)]
pub struct Certificate {
    pub der: Vec<u8>,
    /// The signed part, and the signature on it.
    pub signed: Vec<u8>,
    pub signature_algorithm: Vec<u8>,
    pub signature: Vec<u8>,
    pub issuer: Vec<u8>,
    pub subject: Vec<u8>,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    /// The whole SubjectPublicKeyInfo, and its two parts.
    pub key_info: Vec<u8>,
    pub key_algorithm: Vec<u8>,
    pub key: Vec<u8>,
    pub is_v3: bool,
    /// The CA flag of the basic constraints; None without that extension.
    pub is_authority: Option<bool>,
    /// How many intermediate CAs may stand between this CA and the leaf certificate.
    pub path_length: Option<usize>,
    /// Whether the key may sign certificates; None if the key's usages are not limited.
    pub may_sign: Option<bool>,
    /// Identifiers of the extended key usages, if the certificate limits them.
    pub purposes: Option<Vec<Vec<u8>>>,
    pub alternative_names: Option<Vec<u8>>,
    pub has_name_constraints: bool,
    /// Whether it has policy constraints, or a critical extension that this module cannot honour.
    pub has_unknown_demands: bool,
}

impl Certificate {
    /// Parses a certificate in DER; None if it is malformed.
    pub fn parse(der: &[u8]) -> Option<Certificate> {
        let mut outermost = Values(der);
        let mut outer = Values(outermost.take(SEQUENCE)?);
        let signed = outer.take_whole(SEQUENCE)?;
        let algorithm = outer.take(SEQUENCE)?;
        let signature = bits(outer.take(BIT_STRING)?)?;
        let mut fields = Values(Values(signed).take(SEQUENCE)?);
        let version = match fields.take(EXPLICIT_VERSION) {
            Some(version) => Values(version).take(INTEGER)?,
            None => &[0],
        };
        let serial = fields.take(INTEGER)?;
        let is_sound = outermost.0.is_empty()
            && outer.0.is_empty()
            && matches!(version, [0..=V3])
            && serial.first().is_some_and(|first| *first < 0x80)
            && fields.take(SEQUENCE)? == algorithm;
        if !is_sound {
            return None;
        }
        let issuer = fields.take(SEQUENCE)?;
        let mut validity = Values(fields.take(SEQUENCE)?);
        let (not_before, not_after) = (time(validity.next()?)?, time(validity.next()?)?);
        let subject = fields.take(SEQUENCE)?;
        let key_info = fields.take_whole(SEQUENCE)?;
        let mut key_parts = Values(Values(key_info).take(SEQUENCE)?);
        let key_algorithm = key_parts.take(SEQUENCE)?;
        let key = bits(key_parts.take(BIT_STRING)?)?;
        let mut found = Certificate {
            der: der.to_vec(),
            signed: signed.to_vec(),
            signature_algorithm: algorithm.to_vec(),
            signature: signature.to_vec(),
            issuer: issuer.to_vec(),
            subject: subject.to_vec(),
            not_before,
            not_after,
            key_info: key_info.to_vec(),
            key_algorithm: key_algorithm.to_vec(),
            key: key.to_vec(),
            is_v3: version == [V3],
            ..Certificate::default()
        };
        fields.take(ISSUER_ID);
        fields.take(SUBJECT_ID);
        if let (true, Some(extensions)) = (found.is_v3, fields.take(EXPLICIT_EXTENSIONS)) {
            found.read_extensions(Values(Values(extensions).take(SEQUENCE)?))?;
        }
        fields.0.is_empty().then_some(found)
    }

    fn read_extensions(&mut self, mut extensions: Values<'_>) -> Option<()> {
        let mut known: Vec<&[u8]> = Vec::new();
        while !extensions.0.is_empty() {
            let mut extension = Values(extensions.take(SEQUENCE)?);
            let identifier = extension.take(OBJECT_IDENTIFIER)?;
            let is_critical = extension.take(BOOLEAN).is_some_and(|value| value != [0]);
            let value = extension.take(OCTET_STRING)?;
            if known.contains(&identifier) || !extension.0.is_empty() {
                return None;
            }
            known.push(identifier);
            let number = match identifier {
                [first, second, number] if [*first, *second] == EXTENSIONS => *number,
                _ => 0,
            };
            match number {
                KEY_USAGE => {
                    let usages = bits_cut(Values(value).take(BIT_STRING)?)?;
                    let is_limited = usages.iter().any(|byte| *byte != 0);
                    let first = usages.first().copied().unwrap_or_default();
                    self.may_sign = is_limited.then_some(first & KEY_CERT_SIGN != 0);
                }
                BASIC_CONSTRAINTS => {
                    let mut constraints = Values(Values(value).take(SEQUENCE)?);
                    let is_authority = constraints.take(BOOLEAN).is_some_and(|one| one != [0]);
                    self.is_authority = Some(is_authority);
                    if !constraints.0.is_empty() {
                        self.path_length = Some(small_number(constraints.take(INTEGER)?)?);
                    }
                }
                EXTENDED_KEY_USAGE => {
                    let mut purposes = Values(Values(value).take(SEQUENCE)?);
                    let mut found = Vec::new();
                    while !purposes.0.is_empty() {
                        found.push(purposes.take(OBJECT_IDENTIFIER)?.to_vec());
                    }
                    self.purposes = Some(found);
                }
                ALTERNATIVE_NAMES => {
                    let known = count_names(Values(Values(value).take(SEQUENCE)?))?;
                    self.alternative_names = Some(value.to_vec());
                    self.has_unknown_demands |= is_critical && known == 0;
                }
                NAME_CONSTRAINTS => self.has_name_constraints = true,
                // No rule here implements policy constraints, so they are refused.
                POLICY_CONSTRAINTS => self.has_unknown_demands = true,
                DISTRIBUTION_POINTS | POLICIES => {}
                _ => self.has_unknown_demands |= is_critical,
            }
        }
        Some(())
    }
}

/// The content of a BIT STRING without unused bits.
fn bits(value: &[u8]) -> Option<&[u8]> {
    let (unused, rest) = value.split_first()?;
    (*unused == 0).then_some(rest)
}

/// The content of a BIT STRING whose last byte may have unused bits.
fn bits_cut(value: &[u8]) -> Option<&[u8]> {
    let (unused, rest) = value.split_first()?;
    (*unused < 8).then_some(rest)
}

fn small_number(value: &[u8]) -> Option<usize> {
    match value {
        [number @ 0..0x80] => Some((*number).into()),
        _ => None,
    }
}

/// Counts the alternative names of known kinds; None if one is malformed.
fn count_names(mut names: Values<'_>) -> Option<usize> {
    let mut count = 0;
    while !names.0.is_empty() {
        let (kind, name) = names.next()?;
        let is_readable = match kind {
            EMAIL | DNS_NAME | URI => name.is_ascii(),
            IP_ADDRESS => matches!(name.len(), 4 | 16),
            _ => continue,
        };
        if !is_readable {
            return None;
        }
        count += 1;
    }
    Some(count)
}

/// Parses a UTCTime or GeneralizedTime into seconds since 1970.
fn time((kind, text): (u8, &[u8])) -> Option<i64> {
    let (year, rest) = match kind {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    let [rest @ .., b'Z'] = rest else { return None };
    if rest.len() != 10 {
        return None;
    }
    let part = |place: usize| number(&rest[2 * place..2 * place + 2]);
    let (month, day, hour, minute, second) = (part(0)?, part(1)?, part(2)?, part(3)?, part(4)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
    })
}

/// Days since 1970. Years start in March here, so that a leap day is the last day of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month < 3 { year - 1 } else { year };
    let months = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * months + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let known: [(u8, &[u8], Option<i64>); 10] = [
            (UTC_TIME, b"700101000000Z", Some(0)),
            (UTC_TIME, b"000229000000Z", Some(951_782_400)),
            (UTC_TIME, b"261231235959Z", Some(1_798_761_599)),
            (UTC_TIME, b"500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, b"21000301000000Z", Some(4_107_542_400)),
            (GENERALIZED_TIME, b"20000301000000Z", Some(951_868_800)),
            (UTC_TIME, b"700101000000", None),
            (UTC_TIME, b"701301000000Z", None),
            (UTC_TIME, b"7001010000Z", None),
            (INTEGER, b"700101000000Z", None),
        ];
        for (kind, text, seconds) in known {
            assert_eq!(time((kind, text)), seconds, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn names_that_cannot_be_read() {
        assert_eq!(count_names(Values(b"\x82\x01a\x87\x04abcd\x84\x01x")), Some(2));
        for bad in [&b"\x82\x01\xE4"[..], b"\x87\x03abc", b"\x82\x05a"] {
            assert_eq!(count_names(Values(bad)), None);
        }
    }
}
