//! Translates the end of a call to another server into gRPC's status, even if the server sent none.
//!
//! Texts are those of `kvorum.client.grpc.wire`.

use crate::grpc::{
    CANCELLED, GRPC_MESSAGE, GRPC_STATUS, INTERNAL, OK, PERMISSION_DENIED, RESOURCE_EXHAUSTED,
    UNAUTHENTICATED, UNAVAILABLE, UNIMPLEMENTED, UNKNOWN,
};
use h2::Reason;
use http::{HeaderMap, StatusCode};

pub struct End {
    pub code: i32,
    pub text: String,
    /// The server certainly did not process the call.
    pub is_unprocessed: bool,
}

impl End {
    pub fn new(code: i32, text: impl Into<String>) -> End {
        End { code, text: text.into(), is_unprocessed: false }
    }

    /// The end of a call that the server did not process.
    pub fn unprocessed(code: i32, text: impl Into<String>) -> End {
        End { code, text: text.into(), is_unprocessed: true }
    }

    pub fn refused() -> End {
        End::unprocessed(UNAVAILABLE, "the server refused the call")
    }

    pub fn closing() -> End {
        End::unprocessed(UNAVAILABLE, "the connection is closing")
    }

    /// The end of a call with status OK whose messages do not fit that.
    pub fn broken(text: &str) -> End {
        End::new(INTERNAL, text)
    }

    pub fn is_ok(&self) -> bool {
        self.code == OK
    }
}

/// The end that headers or trailers state; None if they have no status.
pub fn of_headers(headers: &HeaderMap) -> Option<End> {
    let code = headers.get(GRPC_STATUS)?.as_bytes();
    let is_number = (1..=3).contains(&code.len()) && code.iter().all(u8::is_ascii_digit);
    let number = code.iter().fold(0, |number, digit| number * 10 + i32::from(digit & 0x0F));
    let text = headers.get(GRPC_MESSAGE).map(|text| percent_decode(text.as_bytes()));
    Some(End::new(if is_number { number } else { UNKNOWN }, text.unwrap_or_default()))
}

/// The end of a call whose response had no gRPC status.
pub fn of_http(status: StatusCode) -> End {
    let code = match status.as_u16() {
        200 => return End::new(UNKNOWN, "the server ended the call without a status"),
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => UNKNOWN,
    };
    let number = status.as_u16();
    let text = format!("the server answered with HTTP status {number}: is this a gRPC port?");
    End::new(code, text)
}

/// The end of a call that HTTP/2 broke off.
pub fn of_error(error: &h2::Error) -> End {
    if error.is_go_away() && error.is_remote() {
        // Only calls after the last one that the server took end like this.
        return End::refused();
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) if error.is_remote() => End::refused(),
        Some(reason) if error.is_reset() => {
            let code = match reason {
                Reason::CANCEL => CANCELLED,
                Reason::ENHANCE_YOUR_CALM => RESOURCE_EXHAUSTED,
                Reason::INADEQUATE_SECURITY => PERMISSION_DENIED,
                _ => INTERNAL,
            };
            let number = u32::from(reason);
            End::new(code, format!("the server reset the call with HTTP/2's error {number}"))
        }
        _ => End::new(UNAVAILABLE, of_connection(error)),
    }
}

/// Why a connection is lost.
pub fn of_connection(error: &h2::Error) -> String {
    match error.reason() {
        Some(reason) if error.is_go_away() && error.is_remote() => {
            format!("the server ended the connection with HTTP/2's error {}", u32::from(reason))
        }
        Some(reason) => format!("the server does not speak as it should: {reason}"),
        None => format!("the connection is lost: {error}"),
    }
}

fn percent_decode(text: &[u8]) -> String {
    let digit = |place: usize| text.get(place).and_then(|digit| (*digit as char).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut place = 0;
    while let Some(&byte) = text.get(place) {
        place += 1;
        match (byte, digit(place), digit(place + 1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                place += 2;
            }
            _ => decoded.push(byte),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let value = |text| HeaderValue::from_static(text);
        pairs.iter().map(|(name, text)| (name.parse().unwrap(), value(text))).collect()
    }

    #[test]
    fn statuses() {
        let ended = |pairs: &[_]| of_headers(&headers(pairs)).map(|end| (end.code, end.text));
        assert_eq!(ended(&[("grpc-message", "text")]), None);
        assert_eq!(ended(&[("grpc-status", "0")]), Some((0, String::new())));
        assert_eq!(ended(&[("grpc-status", "014")]), Some((14, String::new())));
        for broken in ["", "-1", "1 ", "1234", "one"] {
            assert_eq!(ended(&[("grpc-status", broken)]), Some((UNKNOWN, String::new())));
        }
    }

    #[test]
    fn texts() {
        let known = [
            ("plain", "plain"),
            ("caf%C3%A9 %25", "café %"),
            ("%zz 100% %4", "%zz 100% %4"),
            ("%FF", "\u{FFFD}"),
        ];
        for (encoded, decoded) in known {
            assert_eq!(percent_decode(encoded.as_bytes()), decoded);
        }
    }
}
