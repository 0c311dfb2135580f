//! Selects the headers of plain HTTP requests that the loop wants, and converts their values.

use http::header::InvalidHeaderName;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;
use std::collections::HashSet;

/// Subscribed names; one that ends in a star stands for all names with that prefix.
pub struct Wanted {
    names: HashSet<HeaderName>,
    prefixes: Vec<String>,
}

impl Wanted {
    pub fn new(subscribed: &[String]) -> Result<Wanted, InvalidHeaderName> {
        let mut wanted = Wanted { names: HashSet::new(), prefixes: Vec::new() };
        for name in subscribed {
            match name.strip_suffix('*') {
                Some(prefix) => wanted.prefixes.push(prefix.to_owned()),
                None => {
                    wanted.names.insert(name.parse()?);
                }
            }
        }
        Ok(wanted)
    }

    pub fn includes(&self, name: &HeaderName) -> bool {
        self.names.contains(name)
            || self.prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
    }

    /// Every value of every subscribed header; the values of one name keep their order.
    pub fn of(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let wanted = headers.iter().filter(|(name, _)| self.includes(name));
        wanted.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// A value as text with one character for each byte.
pub fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    match value.to_str() {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(value.as_bytes().iter().copied().map(char::from).collect()),
    }
}

/// The inverse of `text_of`; None if HTTP cannot carry the text.
pub fn value_of(text: &str) -> Option<HeaderValue> {
    if text.is_ascii() {
        return HeaderValue::from_str(text).ok();
    }
    let bytes: Option<Vec<u8>> = text.chars().map(|one| u8::try_from(one).ok()).collect();
    HeaderValue::from_bytes(&bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_value_may_have_survives() {
        for byte in 0..=255 {
            if let Ok(value) = HeaderValue::from_bytes(&[b'x', byte, b'x']) {
                assert_eq!(value_of(&text_of(&value)), Some(value), "{byte}");
            }
        }
        assert_eq!(value_of("\n"), None);
        assert_eq!(value_of("\u{100}"), None);
    }
}
