//! gRPC on top of HTTP/2: parses headers, cuts and frames messages, and builds statuses.
//!
//! Codes and texts are those of grpc-go, which etcd's clients know.

use crate::headers::{text_of, value_of};
use crate::server::shared::{Metadata, Method, Shared};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::read::GzDecoder;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode, request};
use std::io::Read;
use std::time::Duration;

pub const OK: i32 = 0;
pub const CANCELLED: i32 = 1;
pub const UNKNOWN: i32 = 2;
const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
pub const PERMISSION_DENIED: i32 = 7;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const UNIMPLEMENTED: i32 = 12;
pub const INTERNAL: i32 = 13;
pub const UNAVAILABLE: i32 = 14;
pub const UNAUTHENTICATED: i32 = 16;

pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Length of the prefix of a message: a flag and four bytes of length.
const PREFIX_BYTES: usize = 5;

/// The error with which the edge itself ends a call.
pub struct Refusal {
    pub http_status: StatusCode,
    pub code: i32,
    pub text: String,
}

fn refuse(code: i32, text: String) -> Refusal {
    Refusal { http_status: StatusCode::OK, code, text }
}

pub struct CallHead {
    pub method: Method,
    pub gzip: bool,
    pub timeout: Option<Duration>,
    pub metadata: Metadata,
}

pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let rest = value.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

/// Refuses a plain HTTP request where only gRPC is served.
pub fn not_grpc(headers: &HeaderMap) -> Refusal {
    let kind = headers.get(CONTENT_TYPE).map(text_of).unwrap_or_default();
    Refusal {
        http_status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        code: INVALID_ARGUMENT,
        text: format!("invalid gRPC request content-type {}", quote(&kind)),
    }
}

/// Reads which method a call is for, and its options; the error says why it is refused.
pub fn read_head(shared: &Shared, parts: &request::Parts) -> Result<CallHead, Refusal> {
    if parts.method != http::Method::POST {
        return Err(Refusal {
            http_status: StatusCode::METHOD_NOT_ALLOWED,
            code: INTERNAL,
            text: format!(
                "Received a HEADERS frame with :method {} which should be POST",
                quote(parts.method.as_str())
            ),
        });
    }
    let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let found = shared.methods.by_path.get(path);
    let (mut timeout, mut gzip, mut metadata) = (None, Ok(false), Vec::new());
    for (name, value) in &parts.headers {
        match name.as_str() {
            "grpc-timeout" => timeout = Some(parse_timeout(value.as_bytes())),
            "grpc-encoding" => gzip = parse_encoding(value.as_bytes()),
            _ => {
                let place = shared.metadata_keys.iter().position(|key| key == name);
                // The first value of a key counts.
                if let Some(place) = place
                    && !metadata.iter().any(|(known, _)| *known == place)
                {
                    metadata.push((place, value.clone()));
                }
            }
        }
    }
    let timeout = timeout.transpose().map_err(|reason| Refusal {
        http_status: StatusCode::BAD_REQUEST,
        code: INTERNAL,
        text: format!("malformed grpc-timeout: {reason}"),
    })?;
    let method = *found.ok_or_else(|| unknown_method(shared, path))?;
    let metadata = if metadata.is_empty() { None } else { Some(metadata.into()) };
    Ok(CallHead { method, gzip: gzip?, timeout, metadata })
}

/// Whether messages may be compressed with gzip; an unknown encoding is refused.
fn parse_encoding(value: &[u8]) -> Result<bool, Refusal> {
    match value {
        b"identity" | b"" => Ok(false),
        b"gzip" => Ok(true),
        other => {
            let name = quote(&String::from_utf8_lossy(other));
            let text = format!("grpc: Decompressor is not installed for grpc-encoding {name}");
            Err(refuse(UNIMPLEMENTED, text))
        }
    }
}

fn unknown_method(shared: &Shared, path: &str) -> Refusal {
    let name = path.strip_prefix('/').unwrap_or(path);
    let text = match name.rsplit_once('/') {
        None => format!("malformed method name: {}", quote(path)),
        Some((service, method)) if shared.methods.services.contains(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    };
    refuse(UNIMPLEMENTED, text)
}

/// Quotes as Go's %q does, for the characters that headers can hold.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Refuses a call whose client half-closed it before a whole message arrived.
pub fn cut_off(streaming: bool, partial_bytes: usize) -> Refusal {
    let text = if partial_bytes == 0 { "EOF" } else { "unexpected EOF" };
    refuse(if streaming { INTERNAL } else { UNKNOWN }, text.to_owned())
}

pub fn deadline_exceeded() -> Refusal {
    refuse(DEADLINE_EXCEEDED, "context deadline exceeded".to_owned())
}

/// Parses a `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(value: &[u8]) -> Result<Duration, String> {
    let text = quote(&String::from_utf8_lossy(value));
    if value.len() < 2 {
        return Err(format!("transport: timeout string is too short: {text}"));
    }
    if value.len() > 9 {
        return Err(format!("transport: timeout string is too long: {text}"));
    }
    let (digits, unit) = value.split_at(value.len() - 1);
    let nanoseconds: u64 = match unit[0] {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(format!("transport: timeout unit is not recognized: {text}")),
    };
    let digits = String::from_utf8_lossy(digits);
    let number: u64 = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())
        .flatten()
        .ok_or_else(|| format!("strconv.ParseUint: parsing {}: invalid syntax", quote(&digits)))?;
    Ok(Duration::from_nanos(number.saturating_mul(nanoseconds)))
}

/// Returns the prefix of an uncompressed message.
pub fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    let mut prefix = [0; PREFIX_BYTES];
    prefix[1..].copy_from_slice(&(length as u32).to_be_bytes());
    prefix
}

/// Puts the prefix of an uncompressed message before its bytes.
pub fn frame(payload: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + payload.len());
    framed.put_slice(&prefix(payload.len()));
    framed.put_slice(payload);
    framed.freeze()
}

/// The next part of a call's body.
pub enum Next {
    Message {
        message: Bytes,
        /// The message's length on the wire, with its prefix.
        wire_bytes: usize,
        compressed: bool,
    },
    /// A message is complete, but has to stay compressed for now.
    Packed,
    Incomplete,
}

/// Cuts the bytes of a call's body into messages.
#[derive(Default)]
pub struct MessageReader {
    gzip: bool,
    message_bytes_max: usize,
    /// The beginning of a message whose rest has not arrived.
    partial: BytesMut,
    /// The bytes that arrived last and are not yet cut into messages.
    chunk: Bytes,
}

impl MessageReader {
    pub fn new(gzip: bool, message_bytes_max: usize) -> MessageReader {
        MessageReader { gzip, message_bytes_max, ..MessageReader::default() }
    }

    /// Adds the next bytes; all earlier ones must have been cut into messages.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty());
        self.chunk = chunk;
    }

    /// Bytes that are not yet cut into messages.
    pub fn partial_bytes(&self) -> usize {
        self.partial.len() + self.chunk.len()
    }

    /// Returns the next complete message; a compressed one only if `may_unpack`.
    pub fn next(&mut self, may_unpack: impl FnOnce() -> bool) -> Result<Next, Refusal> {
        if self.partial.is_empty() && self.chunk.len() >= PREFIX_BYTES {
            let length = self.check_prefix(self.chunk[..PREFIX_BYTES].try_into().expect("five"))?;
            if self.chunk.len() >= PREFIX_BYTES + length {
                let compressed = self.chunk[0] == 1;
                if compressed && !may_unpack() {
                    return Ok(Next::Packed);
                }
                self.chunk.advance(PREFIX_BYTES);
                let message = self.chunk.split_to(length);
                return self.unpack(compressed, message);
            }
        }
        self.gather(PREFIX_BYTES);
        if self.partial.len() < PREFIX_BYTES {
            return Ok(Next::Incomplete);
        }
        let length = self.check_prefix(self.partial[..PREFIX_BYTES].try_into().expect("five"))?;
        self.gather(PREFIX_BYTES + length);
        if self.partial.len() < PREFIX_BYTES + length {
            return Ok(Next::Incomplete);
        }
        let compressed = self.partial[0] == 1;
        if compressed && !may_unpack() {
            return Ok(Next::Packed);
        }
        let mut message = std::mem::take(&mut self.partial).freeze();
        message.advance(PREFIX_BYTES);
        self.unpack(compressed, message)
    }

    /// Moves bytes from the chunk until the partial message has `wanted` of them.
    fn gather(&mut self, wanted: usize) {
        let missing = wanted.saturating_sub(self.partial.len());
        let moved = self.chunk.split_to(missing.min(self.chunk.len()));
        self.partial.extend_from_slice(&moved);
    }

    fn check_prefix(&self, prefix: [u8; PREFIX_BYTES]) -> Result<usize, Refusal> {
        let [flag, length @ ..] = prefix;
        let length = u32::from_be_bytes(length) as usize;
        if flag > 1 {
            let text = format!("grpc: received unexpected payload format {flag}");
            return Err(refuse(INTERNAL, text));
        }
        if length > self.message_bytes_max {
            let text = format!(
                "grpc: received message larger than max ({length} vs. {})",
                self.message_bytes_max
            );
            return Err(refuse(RESOURCE_EXHAUSTED, text));
        }
        if flag == 1 && !self.gzip {
            let text = "grpc: compressed flag set with identity or empty encoding".to_owned();
            return Err(refuse(INTERNAL, text));
        }
        Ok(length)
    }

    fn unpack(&self, compressed: bool, message: Bytes) -> Result<Next, Refusal> {
        let wire_bytes = PREFIX_BYTES + message.len();
        if !compressed {
            return Ok(Next::Message { message, wire_bytes, compressed });
        }
        let mut unpacked = Vec::new();
        let limit = self.message_bytes_max as u64 + 1;
        if let Err(error) = GzDecoder::new(&message[..]).take(limit).read_to_end(&mut unpacked) {
            let text = format!("grpc: failed to decompress the message: {error}");
            return Err(refuse(INTERNAL, text));
        }
        if unpacked.len() > self.message_bytes_max {
            let text = format!(
                "grpc: received message after decompression larger than max {}",
                self.message_bytes_max
            );
            return Err(refuse(RESOURCE_EXHAUSTED, text));
        }
        Ok(Next::Message { message: unpacked.into(), wire_bytes, compressed })
    }
}

/// The headers that open a response.
pub fn response(status: StatusCode, metadata: &[(String, String)]) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, APPLICATION_GRPC);
    append_all(response.headers_mut(), metadata);
    response
}

/// The trailers that end a successful call.
pub fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Adds a call's status to trailers, or to the headers of a response that has nothing else.
pub fn add_status(trailers: &mut HeaderMap, code: i32, text: &str, extra: &[(String, String)]) {
    trailers.insert(GRPC_STATUS, HeaderValue::from(code));
    if !text.is_empty() {
        trailers.insert(GRPC_MESSAGE, percent_encode(text));
    }
    append_all(trailers, extra);
}

pub fn append_all(headers: &mut HeaderMap, pairs: &[(String, String)]) {
    for (name, value) in pairs {
        // Names and values come from our own code, so one that HTTP forbids is a bug there.
        if let (Ok(name), Some(value)) = (name.parse::<HeaderName>(), value_of(value)) {
            headers.append(name, value);
        }
    }
}

fn percent_encode(text: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    HeaderValue::try_from(encoded).expect("percent-encoded text is printable")
}

/// Encodes binary metadata as gRPC does: base64 without padding.
pub fn base64(data: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = Vec::with_capacity(data.len().div_ceil(3) * 4);
    for group in data.chunks(3) {
        let bytes = [group[0], *group.get(1).unwrap_or(&0), *group.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
        let digits = [18, 12, 6, 0].map(|shift| DIGITS[(bits >> shift & 63) as usize]);
        encoded.extend_from_slice(&digits[..=group.len()]);
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_rest() {
        let known = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")];
        for (plain, encoded) in known {
            assert_eq!(base64(plain.as_bytes()), encoded.as_bytes());
        }
        assert_eq!(base64(&[255, 254, 253]), b"//79");
    }

    #[test]
    fn timeouts() {
        assert_eq!(parse_timeout(b"15m"), Ok(Duration::from_millis(15)));
        assert_eq!(parse_timeout(b"99999999H"), Ok(Duration::from_nanos(u64::MAX)));
        for broken in [&b"5"[..], b"", b"123456789S", b"5x", b"-5S", b"S"] {
            assert!(parse_timeout(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn messages_survive_any_cut() {
        let mut body = frame(b"one").to_vec();
        body.extend_from_slice(&frame(b""));
        body.extend_from_slice(&frame(&[7; 300]));
        for step in 1..body.len() {
            let mut reader = MessageReader::new(false, 1000);
            let mut messages = Vec::new();
            for chunk in body.chunks(step) {
                reader.push(Bytes::copy_from_slice(chunk));
                while let Ok(Next::Message { message, .. }) = reader.next(|| true) {
                    messages.push(message);
                }
            }
            assert_eq!(messages, [&b"one"[..], b"", &[7; 300]]);
            assert_eq!(reader.partial_bytes(), 0);
        }
    }
}
